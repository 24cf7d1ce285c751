"""Show results and samples: sections of report.html, text tables, and partial builds on an HTML page."""
