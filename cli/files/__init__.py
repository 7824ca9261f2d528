"""Text that commands read, and files that they write."""
