"""What a channel's config says, allows, and may become."""
