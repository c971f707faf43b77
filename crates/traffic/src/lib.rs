//! The generator and the instrument: frames, pacing, stamps, receivers.
