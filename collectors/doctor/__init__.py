"""What is wrong with a deployment: looked at, then judged."""
