//! A real Kubernetes control plane, node and bucket on this machine, without a container engine.
//!
//! The programs are those of production: etcd, kube-apiserver, the controllers and the scheduler, with RBAC and client
//! certificates; an S3 server; [kwok](Kwok) for pods by the thousand; a [real node](Node) to test hooks and volumes on
//! running containers; the controllers of [CSI](Csi) with snapshots; and [Velero] itself, the reference for
//! compatibility. Tests and `bowline demo` use them.
//!
//! ```no_run
//! use bowline_testbed::{Bed, ControlPlane, Options};
//!
//! # async fn example() -> Result<(), bowline_testbed::Error> {
//! let bed = Bed::new()?;
//! let plane = ControlPlane::start(&bed, Options::default()).await?;
//! let client = plane.client().await?;
//! // Everything ends, and the folder is removed, when `plane` and `bed` are dropped, or when this
//! // process is killed.
//! # Ok(())
//! # }
//! ```
//!
//! Many beds can run side by side. The programs are found or built by [`program`]; nothing is
//! installed on the machine.

pub mod account;
pub mod api_proxy;
pub mod apply;
mod bed;
mod console;
mod control_plane;
pub mod csi;
pub mod ec2;
pub mod env;
mod error;
pub mod fixture;
mod forward;
pub mod gobuild;
pub mod isolation;
pub mod kubeconfig;
pub mod kwok;
pub mod leftover;
mod lock;
pub mod node;
pub mod pki;
pub mod port;
pub mod process;
pub mod program;
pub mod s3;
mod test_deadline;
pub mod velero;
mod wait;

pub use account::Account;
pub use bed::{Bed, Error as BedError};
pub use control_plane::{ControlPlane, Options};
pub use csi::Csi;
pub use ec2::Ec2;
pub use error::Error;
pub use kwok::Kwok;
pub use node::Node;
pub use s3::S3;
pub use test_deadline::test_deadline;
pub use velero::Velero;
pub use wait::{Poll, eventually, eventually_blocking};
