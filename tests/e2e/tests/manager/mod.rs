//! The manager in front of real API servers: what it makes, what it signs and for whom, what becomes
//! of it when replicas and objects go.

mod aggregated;
mod behind;
mod deployments;
mod figures;
mod gate;
mod held;
mod kridge;
mod leases;
mod leaves;
mod objects;
mod refused;
mod replicas;
mod rights;
mod roots;
mod rotation;
pub(crate) mod scene;
mod siblings;
mod stamps;
mod waiting;
mod writes;
