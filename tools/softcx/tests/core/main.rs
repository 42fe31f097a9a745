//! The device without any driver: WQEs and CQEs are written and read here byte by byte, from the field tables.

mod bench;
mod cq;
mod damage;
mod errors;
mod ethernet;
mod extremes;
mod faults;
mod misuse;
mod opcodes;
mod random;
mod srq;
mod watching;
mod windows;
