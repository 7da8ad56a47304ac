"""What did a transfer do? `transfer.json` and `transfer.html`."""
