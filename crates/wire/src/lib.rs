//! Frames on the wire: views and builders. No I/O, no unsafe, no allocation on the data path.
