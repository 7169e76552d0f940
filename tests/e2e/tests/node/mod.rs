//! Injected pods on real nodes. Some tests share one: see [`scene::Turn`] and [`toolbox`].

mod admin;
mod families;
mod history;
mod kubelet;
mod pods;
mod records;
mod restart;
mod scene;
mod shards;
mod sidecars;
mod toolbox;
mod versions;
