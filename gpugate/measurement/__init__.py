"""The only part of the engine that touches the device."""
