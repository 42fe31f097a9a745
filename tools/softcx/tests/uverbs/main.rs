//! The front for programs: commands byte by byte, as a driver in user space sends them, and rings in memory of the process.

mod damage;
mod life;
mod objects;
mod raw;
mod refusals;
mod traffic;
mod watching;
