"""What preparing a corpus of some size takes, from rates measured on a sample."""
