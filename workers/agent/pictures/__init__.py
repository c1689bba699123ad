"""Images in prompts: decoded, turned into the ids that stand for them, and placed."""
