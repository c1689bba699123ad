"""Images in prompts: taken in, turned into ids, sent, recorded, exported; and what is refused."""
