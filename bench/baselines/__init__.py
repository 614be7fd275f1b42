"""What is compared with: Algorithm 1, and the poster's scheme."""
