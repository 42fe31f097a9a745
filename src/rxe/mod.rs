//! The provider for Soft-RoCE (rxe).
