"""The demo of `make demo`: real commits, ordered for five teams."""
