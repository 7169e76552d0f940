//! The `ctrlmesh` binary.

fn main() {}
