"""Parts that a node's workers share: the sandbox keeper, and how a node is left."""
