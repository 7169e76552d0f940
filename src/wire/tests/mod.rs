#![allow(clippy::too_many_lines, reason = "tables of cases")]

mod delete;
mod frames;
mod media;
mod options;
mod query;
mod request;
mod rv;
mod selector;
mod status;
