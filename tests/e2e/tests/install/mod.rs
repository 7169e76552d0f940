//! The chart and the base on a real node: installed, labelled, upgraded, left alone by its manager, uninstalled.

mod audit;
mod base;
mod deployment;
mod ends;
mod first;
mod handover;
mod names;
mod roots;
mod scene;
mod upgrade;
