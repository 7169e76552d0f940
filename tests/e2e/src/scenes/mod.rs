//! The setups of tests with pods: a node on which injection works, and operators on it.

mod mesh;
mod shards;

pub use self::{
    mesh::{Binaries, Mesh},
    shards::{NAMESPACE, OperatorPod, Shards, Widget},
};
