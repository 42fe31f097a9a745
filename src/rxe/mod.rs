//! The provider for Soft-RoCE (rxe).

mod abi;
mod cq;
mod dma;
mod queue;
mod ring_memory;
mod rq;
mod sq;

#[cfg(test)]
mod testing;
