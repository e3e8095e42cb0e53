"""The measurement of a case: sides, pairs, outputs, counters. Besides faults, only this folder touches the device."""
