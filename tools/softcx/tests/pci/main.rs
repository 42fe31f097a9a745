//! The front for a driver in a guest, with a driver of the test's own: literal command entries and mailboxes in a guest's memory, which
//! is a vector here.

mod commands;
mod damage;
mod driver;
mod faults;
mod limits;
mod objects;
mod traffic;
