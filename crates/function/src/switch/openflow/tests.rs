//! What controllers say, and what they hear.
