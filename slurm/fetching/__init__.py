"""Files from the network, with their checksums."""
