//! A completion queue of a named provider goes with queue pairs of the same.

use ironverbs::{Cq, Error, Pd, PreparedQp, QpBuilder, Rxe};

fn mix(pd: &Pd, named: &Cq<Rxe>, any: &Cq) -> Result<PreparedQp, Error> {
    QpBuilder::rc(pd, any, named).build()
}

fn main() {}
