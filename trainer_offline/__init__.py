"""Archive, prepare, train, gate, register: the offline half."""
