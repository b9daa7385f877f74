"""Between protobuf and the engine's own types; nothing else knows both."""
