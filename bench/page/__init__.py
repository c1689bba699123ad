"""How smooth the web page stays with a long trajectory."""
