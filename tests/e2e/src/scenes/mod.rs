//! The setups of tests with pods: a node on which injection works, and operators on it.

mod installed;
mod mesh;
mod shards;
mod tools;
mod webhooks;

pub use self::{
    installed::{Boundary, Installed, PodClient},
    mesh::{Binaries, Mesh},
    shards::{NAMESPACE, OperatorPod, Shards, Widget, sample},
    tools::{Tool, Tools},
    webhooks::{Run, Webhooks},
};
