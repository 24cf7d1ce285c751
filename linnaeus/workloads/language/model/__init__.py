"""Build the network of the language workload: `gpt.build_gpt`, a decoder in named sizes."""
