//! What people see of a running measurement: a dashboard on a terminal.

mod dashboard;
mod draw;

pub use dashboard::{Asked, Dashboard};
pub use draw::View;
