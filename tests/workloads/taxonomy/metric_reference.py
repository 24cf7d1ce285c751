"""A slow reference of every validation metric: one sample, one taxon and one pair of taxa at a time, in Python floats.

It shares no code with `linnaeus.workloads.taxonomy.metrics`, and reads only the parents of the tree.
"""

import itertools
import math

from tests.workloads.taxonomy.trees import chain

THRESHOLDS = [0.0] + [1 / (1 + math.exp(-(-16 + i / 4))) for i in range(129)] + [2.0]


def mean(values):
    values = [v for v in values if not math.isnan(v)]
    return sum(values) / len(values) if values else math.nan


class Taxa:
    """Taxa of a tree as nodes; -1 is the virtual root."""

    def __init__(self, tree):
        self.last, self.offsets, self.parent = len(tree.ranks) - 1, tree.offsets, tree.node_parent.tolist()
        self.chains = {node: chain(tree, node) for node in range(-1, len(self.parent))}  # from the taxon up to its root
        self.rank = {-1: -1} | {node: r for r in range(len(tree.ranks)) for node in range(tree.offsets[r], tree.offsets[r + 1])}
        self.leaves = [node for node in range(len(self.parent)) if node not in self.parent]
        self.finest = list(range(tree.offsets[-2], tree.offsets[-1]))

    def lca(self, a, b):
        return next((t for t in self.chains[a] if t in self.chains[b]), -1)

    def height(self, a, b):
        return self.last - self.rank[self.lca(a, b)]

    def leaves_below(self, taxon):
        return len(self.leaves) if taxon < 0 else sum(taxon in self.chains[leaf] for leaf in self.leaves)

    def deepest(self, classes):
        return max([self.offsets[r] + c for r, c in enumerate(classes) if c >= 0], default=-1)


def reference(tree, scores, batch, training_counts):
    """Return all metrics except the confidence intervals. `scores`: log_probs (per rank), path, consistent."""
    taxa, span, last = Taxa(tree), range(len(tree.ranks)), len(tree.ranks) - 1
    rows = [i for i in range(len(batch["weight"])) if batch["weight"][i] > 0]
    y, path = batch["label"].tolist(), scores["path"].tolist()
    raw = [rank.tolist() for rank in scores["log_probs"]]
    p = [[_class_probabilities(raw[r][i], tree.sizes[r]) for i in range(len(y))] for r in span]
    order = [[sorted(range(tree.sizes[r]), key=lambda c, z=p[r][i]: (-z[c], c)) for i in range(len(y))] for r in span]
    finest = [i for i in rows if y[i][last] >= 0]
    out, losses = {}, []
    for r, rank in enumerate(tree.ranks):
        known = [i for i in rows if y[i][r] >= 0]
        right = {i: float(path[i][r] == y[i][r]) for i in known}
        losses.append(mean([-raw[r][i][y[i][r]] for i in known]))
        out[f"{rank}/loss"], out[f"{rank}/top1"] = losses[-1], mean(right.values())
        out[f"{rank}/top5"] = mean([float(y[i][r] in order[r][i][:5]) for i in known])
        if scores["consistent"] and rows:
            out[f"{rank}/marginal_top1"] = mean([float(y[i][r] == order[r][i][0]) for i in known])
        if len(raw[r][0]) > tree.sizes[r]:
            predicted_null = [i for i in rows if raw[r][i][-1] > max(raw[r][i][:-1])]
            out[f"{rank}/null_recall"] = mean([float(i in predicted_null) for i in rows if y[i][r] < 0])
            out[f"{rank}/null_precision"] = mean([float(y[i][r] < 0) for i in predicted_null])
        share = {c: mean([right[i] for i in known if y[i][r] == c]) for c in range(tree.sizes[r])}
        seen = training_counts[r]
        out[f"{rank}/macro_top1"] = mean(share.values())
        out[f"{rank}/many"] = mean([v for c, v in share.items() if seen[c] > 100])
        out[f"{rank}/medium"] = mean([v for c, v in share.items() if 20 <= seen[c] <= 100])
        out[f"{rank}/few"] = mean([v for c, v in share.items() if seen[c] < 20])
        out[f"{rank}/ece"] = ece([(p[r][i][order[r][i][0]], y[i][r] == order[r][i][0]) for i in known])
    out["loss"] = mean(losses)
    chain_right = {i: all(y[i][r] in (-1, path[i][r]) for r in span) for i in rows}
    out["chain"] = mean([float(chain_right[i]) for i in rows if min(y[i]) >= 0])
    out["partial_chain"] = mean([float(chain_right[i]) for i in rows if max(y[i]) >= 0])
    out["inconsistent"] = mean([float(broken(taxa, path[i])) for i in rows])
    predicted = {i: taxa.deepest(path[i]) for i in rows}
    truth = {i: taxa.deepest(y[i]) for i in rows}
    height = {i: taxa.height(predicted[i], truth[i]) for i in finest}
    out["hd1"] = mean(height.values())
    out["severity"] = mean([height[i] for i in finest if path[i][last] != y[i][last]])
    least_risk = {i: by_risk(taxa, p[last][i]) for i in finest}
    for k in (5, 20):
        out[f"hd{k}"] = mean([mean([taxa.height(taxa.finest[c], truth[i]) for c in order[last][i][:k]]) for i in finest])
        out[f"crm_hd{k}"] = mean([mean([taxa.height(taxa.finest[c], truth[i]) for c in least_risk[i][:k]]) for i in finest])
    risky = {i: taxa.height(taxa.finest[least_risk[i][0]], truth[i]) for i in finest}
    out["crm_top1"] = mean([float(h == 0) for h in risky.values()])
    out["crm_hd1"], out["crm_severity"] = mean(risky.values()), mean([h for h in risky.values() if h])
    for name, value in (("depth", lambda t: len(taxa.chains[t])), ("info", lambda t: bits(taxa, t))):
        found = [hierarchical(taxa, value, truth[i], predicted[i]) for i in rows if truth[i] >= 0]
        for j, score in enumerate(("precision", "recall", "f1")):
            out[f"{name}_{score}"] = mean([f[j] for f in found])
    deepest = {i: max(r for r in span if path[i][r] >= 0) for i in finest}
    confidence = {i: p[deepest[i]][i][path[i][deepest[i]]] for i in finest}
    out["aurc"] = aurc([(confidence[i], path[i][last] != y[i][last]) for i in finest])
    out["hierarchical_aurc"] = hierarchical_aurc(taxa, [(predicted[i], truth[i], p[last][i]) for i in finest])
    return out


def _class_probabilities(log_p, size):
    """Return the probabilities of the classes of a rank, conditional on a class."""
    total = math.fsum(math.exp(v) for v in log_p[:size])
    return [math.exp(v) / total for v in log_p[:size]]


def broken(taxa, path):
    """Return True if a class differs from that of the path of the deepest one."""
    return any(taxa.offsets[taxa.rank[t]] + path[taxa.rank[t]] != t for t in taxa.chains[taxa.deepest(path)])


def ece(pairs):
    total = 0.0
    for i in range(15):
        inside = [(c, float(right)) for c, right in pairs if i / 15 < c <= (i + 1) / 15]
        if inside:
            total += abs(sum(right for _, right in inside) - sum(c for c, _ in inside)) / len(pairs)
    return total if pairs else math.nan


def by_risk(taxa, p):
    """Return the finest classes by expected height, from the dense matrix of heights."""
    risk = [math.fsum(p[y] * taxa.height(c, taxa.finest[y]) for y in range(len(p))) for c in taxa.finest]
    return sorted(range(len(p)), key=lambda c: (round(risk[c], 12), c))


def bits(taxa, taxon):
    return math.log2(len(taxa.leaves)) - math.log2(taxa.leaves_below(taxon))


def hierarchical(taxa, value, y, p):
    v_y, v_p, both = value(y), value(p), value(taxa.lca(y, p))
    return (math.nan,) * 3 if v_y == 0 else (both / v_p, both / v_y, 2 * both / (v_p + v_y))


def aurc(pairs):
    """Return the mean risk over all prefixes of the samples by confidence; among equal confidences, the mean over their orders."""
    n, total = 0, 0.0
    risks, errors = [], 0.0
    for confidence in sorted({c for c, _ in pairs}, reverse=True):
        wrong = [float(w) for c, w in pairs if c == confidence]
        for _ in wrong:
            errors += sum(wrong) / len(wrong)
            n += 1
            risks.append(errors / n)
    total = sum(risks)
    return total / n if n else math.nan


def hierarchical_aurc(taxa, samples):
    if not samples or len(taxa.leaves) < 2:
        return math.nan
    curve = []
    for threshold in THRESHOLDS:
        errors = coverage = 0.0
        for predicted, truth, p in samples:
            answer = predicted
            while answer >= 0 and math.fsum(q for c, q in zip(taxa.finest, p, strict=True) if answer in taxa.chains[c]) < threshold:
                answer = taxa.parent[answer]
            errors += answer >= 0 and answer not in taxa.chains[truth]
            coverage += 1 - math.log2(taxa.leaves_below(answer)) / math.log2(len(taxa.leaves))
        curve.append((coverage / len(samples), errors / len(samples)))
    return sum((a[0] - b[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(curve))
