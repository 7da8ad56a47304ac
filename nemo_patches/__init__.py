"""What NeMo lacks for this project: OPT, a CPU as device, attention without TransformerEngine; each patch guards itself."""
