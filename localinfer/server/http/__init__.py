"""What is between the APIs and the network: middleware, errors, streams, static files."""
