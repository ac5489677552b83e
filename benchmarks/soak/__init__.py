"""One run, half of its peers on S3 and half on libp2p, and a random fault every minute."""
