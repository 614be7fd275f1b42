"""What a producer does: messages with their tickets, receipts, and the order that it follows."""
