//! Providers are the library's.

struct Mine;

impl ironverbs::Provider for Mine {}

fn main() {}
