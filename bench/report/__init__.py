"""The suite, its marks, and the page that shows them."""
