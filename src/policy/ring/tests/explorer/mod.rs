//! Every interleaving of a small ring: two shards, three pods, the product's own machine.
//!
//! The world around the machines is the model: one store, in which a write of an object and a write
//! of a Lease take effect at one moment, or never; networks that lose answers and deliver late;
//! processes that are killed, paused and started again; configs that are edited in any order and
//! seen late, out of order or again. What a machine answers to an input is computed once.
//!
//! Checked at each write of an object that takes effect:
//! - G1, no return: no owner of a later ownership has written the cell before it;
//! - G2, no overlap: no owner of a later ownership has opened the cell before it.
//!
//! Checked over the graph: progress. From every state, without further faults, each cell that one
//! config wants can come to be open in that shard, and each that both want in one of them.

mod fingerprint;
mod graph;
mod machines;
mod pod_steps;
mod runs;
mod steps;
mod world;
