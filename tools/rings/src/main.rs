//! Counts the instructions of post and poll, beside those of libibverbs with its providers.

mod adapter;
mod args;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_counter.rs")]
mod counter;
mod guest;
mod limits;
mod programs;
mod table;

use anyhow::{Context, Result, ensure};
use args::{Args, Internal};
use clap::Parser;
use guest::{Counted, Device};
use limits::Held;
use table::Table;

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(Internal::Count { only, program }) = &args.command {
        println!("{}", serde_json::to_string(&counter::count(program, only)?)?);
        return Ok(());
    }
    ensure!(cfg!(target_arch = "x86_64"), "only instructions of x86-64 can be counted");
    if args.mlx5 {
        return adapter::run(&args);
    }
    let device = if args.mlx5_driver { Device::Mlx5 } else { Device::Rxe };
    let only = if args.limits { limits::counted() } else { Vec::new() };
    let Counted { kernel, steps, ticks } = guest::count(device, args.kernel, &only)?;
    let held = args.mlx5_driver.then(|| Held::new(&steps, ticks.as_ref())).transpose()?;
    if let Some(held) = held.as_ref().filter(|_| args.limits) {
        print!("{}", held.markdown());
        return held.check();
    }
    let libibverbs = programs::version("pkg-config", &["--modversion", "libibverbs"]);
    let table = Table::new(device, kernel, libibverbs, programs::version("rustc", &["--version"]), &steps, held);
    let missing = table.missing();
    ensure!(missing.is_empty(), "not counted: {}", missing.join(", "));
    if let Some(file) = &args.write {
        std::fs::write(file, table.markdown()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&table)?);
    } else {
        print!("{}", table.markdown());
    }
    Ok(())
}
