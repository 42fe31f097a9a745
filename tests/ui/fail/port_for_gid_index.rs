//! Ports count from 1, GID indexes from 0.

use ironverbs::{Any, GidIndex, PortNum, QpBuilder};

fn swapped<'a>(builder: QpBuilder<'a, Any>) -> QpBuilder<'a, Any> {
    builder.port(GidIndex(1)).gid_index(PortNum::ONE)
}

fn main() {}
