//! Post and poll contain no call but the doorbell's, and nothing that can panic: read off the machine code.
//!
//! `tools/rings` has each way to post and to poll as a function of its own, `hot_rxe_…`, `hot_mlx5_…` and `hot_any_…`. They are built as a
//! release and disassembled with `objdump`. Every instruction between a function's first and last byte is looked at, whether
//! or not a test would ever reach it; so code for errors, and a panic that only the optimizer thinks possible, count too.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

/// The one function that may be called, by sends: what the doorbell does when the plain system call was refused. It is
/// cold, and is where a device model's doorbell goes.
const DOORBELL: &str = "ironverbs::uverbs::doorbell::SendDoorbell::ring_otherwise";

/// What polling may call, and only when something is wrong: nothing is there and the queue is not well, or the queue is full,
/// so that completions may have been lost. It is cold.
const ALARMED: &str = "::end_alarmed";

/// What polling an mlx5 device may call: when a completion is a failure, is not of a queue that the poller knows already, is
/// packed with others, or carries its message; and at the end of each half of the ring. All are cold. And what takes many
/// completions at once: one call for a run of them.
const CLOSER_LOOK: &[&str] = &["cq::CqB::read", "cq::CqB::turn", "cq::CqB::run", "pool::Slot::fill"];

/// The ends of a batch, which are out of line where the provider is not known. Once a batch. They call nothing.
const END_OF_BATCH: &[&str] = &["verbs::any::end_rxe", "verbs::any::end_mlx5"];

/// What has to be there, for each provider. `true`: rings the doorbell.
const FUNCTIONS: &[(&str, bool)] = &[
    ("send", true),
    ("uc_send", true),
    ("uc_write", true),
    ("ud_send", true),
    ("ud_send_imm", true),
    ("ud_send_inline", true),
    ("ud_recv", false),
    ("send_list", true),
    ("send_sges", true),
    ("send_imm", true),
    ("send_inline", true),
    ("send_inline_word", true),
    ("send_inline_pieces", true),
    ("write", true),
    ("write_imm", true),
    ("write_inline", true),
    ("write_inline_word", true),
    ("write_inline_list", true),
    ("read", true),
    ("compare_swap", true),
    ("fetch_add", true),
    ("send_inv", true),
    ("bind_mw", true),
    ("local_inv", true),
    // Its doorbell is a store: only mlx5 has it.
    ("xrc_send", false),
    // Its doorbell is a store: only mlx5 has it.
    ("xrc_write_inline", false),
    // Its doorbell is a store: only mlx5 has it.
    ("nop", false),
    ("atomic_write", true),
    ("flush", true),
    ("send_slot", true),
    ("write_slot", true),
    ("read_slot", true),
    ("ud_send_slot", true),
    ("recv_slot", false),
    ("srq_recv_slot", false),
    ("take_slot", false),
    ("reclaim_slot", false),
    ("send_mixed", true),
    ("recv", false),
    ("recv_list", false),
    ("recv_sges", false),
    ("srq_recv", false),
    ("srq_recv_list", false),
    ("poll", false),
    ("poll_status", false),
    ("poll_many", false),
    ("poll_many_status", false),
    ("poll_in_place", false),
];

#[test]
#[ignore = "builds two optimized programs; tools/test runs it: cargo test --test hotpath -- --ignored"]
fn post_and_poll_call_nothing_but_the_doorbell() {
    // As this workspace builds releases, and as a program does that says nothing about it.
    check_build("measured");
    check_build("plain");
}

fn check_build(profile: &str) {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return skipped("the instructions of this architecture are not known to the test");
    }
    let version = Command::new("objdump").arg("--version").stdout(Stdio::null()).status();
    match version {
        Err(error) if error.kind() == ErrorKind::NotFound => return skipped("there is no objdump (package binutils)"),
        other => assert!(other.unwrap().success(), "objdump does not run"),
    }
    let program = build(profile);
    let functions = functions(&Listing {
        symbols: objdump(&["--syms", "--demangle", &program]),
        relocations: objdump(&["--dynamic-reloc", &program]),
        code: objdump(&["--disassemble", "--demangle", "--no-show-raw-insn", "--section=.text", &program]),
    });

    let mut faults = Vec::new();
    for (provider, function, rings) in ["rxe", "mlx5", "any"]
        .iter()
        .flat_map(|provider| FUNCTIONS.iter().map(move |(function, rings)| (provider, function, *rings)))
    {
        let name = format!("hot_{provider}_{function}");
        let function = functions.get(&name).unwrap_or_else(|| panic!("the program has no function {name}"));
        faults.extend(function.faults(rings, provider).into_iter().map(|fault| format!("{name}: {fault}")));
    }
    for name in END_OF_BATCH {
        let function = functions.get(*name).unwrap_or_else(|| panic!("the program has no function {name}"));
        faults.extend(function.faults(false, "rxe").into_iter().map(|fault| format!("{name}: {fault}")));
    }
    let expected = 3 * FUNCTIONS.len() + END_OF_BATCH.len();
    assert_eq!(functions.len(), expected, "functions that the list in this test does not have: {:?}", functions.keys());
    assert!(faults.is_empty(), "the {profile} build has calls or panics in post or poll:\n{}", faults.join("\n"));
}

/// Builds the program in one of the workspace's profiles, as `cargo rings` counts it, and returns its path.
fn build(profile: &str) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--profile", profile, "--package", "rings", "--bin", "rings-ironverbs"])
        .args(["--no-default-features", "--quiet", "--message-format", "json"]);
    let output = cargo.stderr(Stdio::inherit()).output().expect("cannot run cargo");
    assert!(output.status.success(), "the program does not build");
    let messages = String::from_utf8(output.stdout).unwrap();
    let path = messages.split("\"executable\":\"").nth(1).and_then(|rest| rest.split('"').next());
    path.expect("cargo names no executable").to_owned()
}

fn objdump(args: &[&str]) -> String {
    let output = Command::new("objdump").args(args).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "objdump {args:?} failed");
    String::from_utf8(output.stdout).unwrap()
}

/// What objdump says of a program.
struct Listing {
    symbols: String,
    relocations: String,
    code: String,
}

/// One function's machine code.
struct Function {
    start: u64,
    end: u64,
    /// As objdump writes them.
    instructions: Vec<String>,
}

/// The functions whose names begin with `hot_`, and those of [`END_OF_BATCH`]. Two names may stand for the same code.
fn functions(listing: &Listing) -> BTreeMap<String, Function> {
    let symbols: Vec<Symbol> = listing.symbols.lines().filter_map(Symbol::parse).collect();
    let names: BTreeMap<u64, &str> = symbols.iter().map(|symbol| (symbol.address, symbol.name)).collect();
    let constants: BTreeMap<u64, u64> = listing.relocations.lines().filter_map(constant).collect();
    let code: Vec<(u64, &str)> = listing.code.lines().filter_map(instruction).collect();
    symbols
        .iter()
        .filter_map(|symbol| Some((symbol, symbol.shown_as()?)))
        .map(|(&Symbol { address: start, size, .. }, name)| {
            let end = start + size;
            let inside = code.iter().filter(|(address, _)| (start..end).contains(address));
            let texts: Vec<&str> = inside.map(|&(_, text)| text).collect();
            let instructions = texts.iter().map(|text| direct(text, &texts, &constants, &names)).collect();
            (name.to_owned(), Function { start, end, instructions })
        })
        .collect()
}

struct Symbol<'a> {
    address: u64,
    size: u64,
    name: &'a str,
}

impl<'a> Symbol<'a> {
    /// `ADDRESS FLAGS SECTION <tab> SIZE [.hidden] NAME`
    fn parse(line: &'a str) -> Option<Self> {
        let (place, rest) = line.split_once('\t')?;
        let (size, name) = rest.split_once(' ')?;
        let name = name.trim().trim_start_matches(".hidden ");
        Some(Self { address: hex(place.split(' ').next()?)?, size: hex(size)?, name })
    }

    /// What this test calls it, if it looks at it.
    fn shown_as(&self) -> Option<&'a str> {
        let Self { name, .. } = *self;
        let of_end = || END_OF_BATCH.iter().copied().find(|end| name.ends_with(end));
        if name.starts_with("hot_") { Some(name) } else { of_end() }
    }
}

/// `PLACE R_…_RELATIVE *ABS*+VALUE`: a word that holds an address of this program, and that no code changes.
fn constant(line: &str) -> Option<(u64, u64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [place, kind, value] = words[..] else { return None };
    if !kind.ends_with("_RELATIVE") {
        return None;
    }
    Some((hex(place)?, hex(value.strip_prefix("*ABS*+0x")?)?))
}

/// `  ADDRESS: <tab> INSTRUCTION`
fn instruction(line: &str) -> Option<(u64, &str)> {
    let (address, text) = line.split_once(":\t")?;
    Some((hex(address.trim())?, text.trim()))
}

/// Writes a call through a constant word as the call of the function that the word names: code of another crate is called
/// so, unless the linker makes it direct. The word may have been loaded into a register before.
fn direct(text: &str, function: &[&str], constants: &BTreeMap<u64, u64>, names: &BTreeMap<u64, &str>) -> String {
    let callee = || {
        let target = text.strip_prefix("call")?.trim();
        let word = match target.strip_prefix('*').filter(|register| register.starts_with('%')) {
            Some(register) => word_in(register, function)?,
            None => word_of(target)?,
        };
        let callee = constants.get(&word)?;
        Some(format!("call {callee:x} <{}>", names.get(callee)?))
    };
    callee().unwrap_or_else(|| text.to_owned())
}

/// Where the word is that an operand names, as objdump notes it behind.
fn word_of(operand: &str) -> Option<u64> {
    hex(operand.split_once('#')?.1.split_whitespace().next()?)
}

/// Where the only word is that a function ever loads into that register. It may be put aside in another one, and come back.
fn word_in(register: &str, function: &[&str]) -> Option<u64> {
    let mut words = BTreeSet::new();
    for text in function.iter().filter(|text| text.starts_with("mov ") || text.starts_with("lea ")) {
        let (operands, _) = text[4..].split_once('#').unwrap_or((&text[4..], ""));
        let Some(from) = operands.trim().strip_suffix(register).and_then(|rest| rest.strip_suffix(',')) else {
            continue;
        };
        let aside = format!("{register},{}", from.trim());
        match from.trim().starts_with('%') {
            true if function.iter().any(|text| text.strip_prefix("mov ").is_some_and(|to| to.trim() == aside)) => {}
            true => return None,
            false if text.starts_with("lea ") => return None,
            false => {
                words.insert(word_of(text)?);
            }
        }
    }
    words.pop_first().filter(|_| words.is_empty())
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

impl Function {
    /// What is wrong with it.
    fn faults(&self, rings: bool, provider: &str) -> Vec<String> {
        let mut faults = Vec::new();
        let (mut doorbells, mut system_calls, mut returns) = (0, 0, 0);
        for (at, text) in self.instructions.iter().enumerate() {
            match Kind::of(text) {
                Kind::Call(Some(callee)) if rings && callee == DOORBELL => doorbells += 1,
                Kind::Call(Some(callee)) if !rings && callee.ends_with(ALARMED) => {}
                Kind::Call(Some(callee))
                    if !rings && provider != "rxe" && CLOSER_LOOK.iter().any(|name| callee.ends_with(name)) => {}
                Kind::Call(Some(callee))
                    if !rings && provider == "any" && END_OF_BATCH.iter().any(|name| callee.ends_with(name)) => {}
                Kind::Call(_) => faults.push(format!("a call: {text}")),
                Kind::Jump(Some(target)) if (self.start..self.end).contains(&target) => {}
                Kind::Jump(Some(_)) => faults.push(format!("a call at the end, by a jump: {text}")),
                Kind::Jump(None) if is_table(&self.instructions[..at]) => {}
                Kind::Jump(None) => faults.push(format!("a jump to an address that is not known: {text}")),
                Kind::Trap => faults.push(format!("a trap: {text}")),
                Kind::SystemCall => system_calls += 1,
                Kind::Return => returns += 1,
                Kind::Other => {}
            }
        }
        if returns == 0 {
            faults.push("no return: it was not disassembled whole".into());
        }
        match (rings, system_calls) {
            // This one's doorbell is a store.
            (true, 0) if provider == "mlx5" => {}
            (true, 1..) if provider == "mlx5" => faults.push(format!("{system_calls} system calls")),
            (true, 0) => faults.push("no system call: where is the doorbell?".into()),
            (false, 1..) => faults.push(format!("{system_calls} system calls")),
            _ => {}
        }
        if doorbells > system_calls {
            faults.push(format!("{doorbells} calls of the doorbell's other ways for {system_calls} system calls"));
        }
        faults
    }
}

/// Whether what comes before a jump takes its address from a table of places in the function: an offset, and the table's own
/// address added to it.
fn is_table(before: &[String]) -> bool {
    let before = &before[before.len().saturating_sub(6)..];
    let has = |mnemonic| before.iter().any(|text| text.split_whitespace().next() == Some(mnemonic));
    has("movslq") && has("add")
}

/// What an instruction does to the flow of control.
#[derive(Debug, PartialEq)]
enum Kind {
    /// Of a function, if its name is known.
    Call(Option<String>),
    /// To an address, if it is known.
    Jump(Option<u64>),
    Trap,
    SystemCall,
    Return,
    Other,
}

impl Kind {
    /// Of an instruction of x86-64 or aarch64; their mnemonics do not clash in what matters here.
    fn of(text: &str) -> Self {
        const PREFIXES: &[&str] = &["addr32", "bnd", "cs", "data16", "ds", "lock", "notrack", "rep", "repnz", "repz"];
        let mut words = text.split_whitespace().skip_while(|word| PREFIXES.contains(word));
        let mnemonic = words.next().unwrap_or_default();
        let operands: String = text.split_once(mnemonic).map_or("", |(_, operands)| operands).into();
        match mnemonic {
            "call" | "callq" | "bl" | "blr" => Self::Call(symbol(&operands)),
            "syscall" | "svc" => Self::SystemCall,
            "sysenter" | "int" | "hvc" | "smc" => Self::Call(None),
            "ret" | "retq" | "retaa" | "retab" => Self::Return,
            "ud1" | "ud2" | "int3" | "hlt" | "brk" | "udf" | "(bad)" => Self::Trap,
            "b" | "br" | "cbz" | "cbnz" | "tbz" | "tbnz" => Self::Jump(address(&operands)),
            _ if mnemonic.starts_with('j') || mnemonic.starts_with("b.") || mnemonic.starts_with("loop") => {
                Self::Jump(address(&operands))
            }
            _ => Self::Other,
        }
    }
}

/// `ADDRESS <NAME>`: the name, without the angle brackets and the hash that its crate's compiler may have given it.
fn symbol(operands: &str) -> Option<String> {
    let name = operands.split_once('<')?.1.rsplit_once('>')?.0.replace(['<', '>'], "");
    let hash = |tail: &&str| tail.len() == 17 && tail.starts_with('h');
    Some(match name.rsplit_once("::") {
        Some((path, tail)) if hash(&tail) => path.to_owned(),
        _ => name,
    })
}

/// `[OTHER,…] ADDRESS <NAME>`: the address.
fn address(operands: &str) -> Option<u64> {
    let before = operands.split_once('<').map_or(operands, |(before, _)| before);
    let last = before.rsplit(',').next()?.trim();
    hex(last.strip_prefix("0x").unwrap_or(last))
}

/// Past the test harness, which shows the output of failed tests only.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "post_and_poll_call_nothing_but_the_doorbell: skipped: {why}");
}

fn function(text: &[&str]) -> Function {
    let instructions = text.iter().map(|text| (*text).to_owned()).collect();
    Function { start: 0x1000, end: 0x1000 + text.len() as u64, instructions }
}

#[test]
fn functions_are_read_whole_and_calls_through_constants_are_named() {
    let functions = functions(&Listing {
        symbols: "0000000000001000 g     F .text\t000000000000000a hot_rxe_send\n\
                  0000000000005000 l     F .text\t0000000000000010              .hidden <a::B as c::D>::e\n"
            .into(),
        relocations: "OFFSET           TYPE              VALUE\n\
                      00000000000ab518 R_X86_64_RELATIVE  *ABS*+0x0000000000005000\n\
                      00000000000ab520 R_X86_64_GLOB_DAT  memcpy@GLIBC_2.14\n"
            .into(),
        code: "0000000000001000 <hot_rxe_send>:\n    \
               1000:\tcall   *0x721fe(%rip)        # ab518 <_DYNAMIC+0x340>\n    \
               1006:\tcall   *0x721fe(%rip)        # ab520 <memcpy@GLIBC_2.14>\n    \
               1009:\tret\n\n\
               000000000000100a <other>:\n    100a:\tud2\n"
            .into(),
    });
    let [(name, function)] = &functions.iter().collect::<Vec<_>>()[..] else { panic!("one function") };
    assert_eq!((name.as_str(), function.start, function.end), ("hot_rxe_send", 0x1000, 0x100a));
    let memcpy = "call   *0x721fe(%rip)        # ab520 <memcpy@GLIBC_2.14>";
    assert_eq!(function.instructions, ["call 5000 <<a::B as c::D>::e>", memcpy, "ret"]);
    assert_eq!(function.faults(false, "rxe").len(), 2);
}

#[test]
fn a_call_through_a_register_is_named_where_it_holds_one_word_only() {
    let word = "mov    0x13654a(%rip),%r10        # 1bfe60 <_DYNAMIC+0x2c0>";
    let other_word = "mov    0x13654a(%rip),%r10        # 1bfe68 <_DYNAMIC+0x2c8>";
    let code = [word, "mov    %r10,%r12", "mov    0x40(%rsi),%r10d", "call   *%r10", "mov    %r12,%r10", word, "ret"];
    assert_eq!(word_in("%r10", &code), Some(0x1bfe60));
    for other in [other_word, "mov    0x8(%rax),%r10", "lea    0x8(%rip),%r10        # 5b490 <f>", "mov    %rdi,%r10"] {
        assert_eq!(word_in("%r10", &[&code[..], &[other]].concat()), None, "{other}");
    }
    assert_eq!(word_in("%rax", &code), None);
}

#[test]
fn a_call_of_any_form_is_a_fault() {
    for bad in [
        "call   5b490 <core::panicking::panic_bounds_check>",
        "addr32 call 5b490 <memcpy@plt>",
        "call   *0x18(%rax)",
        "call   *0x4a1c2(%rip)        # 7b8f0 <memcpy@GLIBC_2.14>",
        "jmp    5b490 <memcpy@plt>",
        "jmp    *%rax",
        "notrack jmp *%rcx",
        "ud2",
        "syscall",
        "bl\t5b490 <memcpy>",
        "blr\tx8",
        "b\t5b490 <memcpy>",
        "cbz\tx0, 5b490 <core::panicking::panic>",
        "br\tx8",
        "brk\t#0x1",
        "svc\t#0x0",
        "call   5b490 <ironverbs::uverbs::doorbell::SendDoorbell::ring_otherwise>",
    ] {
        assert_eq!(function(&["nop", bad, "ret"]).faults(false, "rxe").len(), 1, "{bad}");
    }
    for good in
        ["jne    1000 <hot_rxe_poll+0x0>", "b.eq\t1001 <hot_rxe_poll+0x1>", "tbz\tw0, #3, 1002 <hot_rxe_poll+0x2>"]
    {
        assert!(function(&["nop", good, "ret"]).faults(false, "rxe").is_empty(), "{good}");
    }
    assert_eq!(function(&["nop"]).faults(false, "rxe").len(), 1, "without a return");
}

#[test]
fn a_send_rings_once_and_may_call_the_doorbell_only() {
    let otherwise = "call   5b490 <<ironverbs::uverbs::doorbell::SendDoorbell>::ring_otherwise>";
    let hashed = "call   5b490 <ironverbs::uverbs::doorbell::SendDoorbell::ring_otherwise::h0123456789abcdef>";
    let other = "call   5b490 <ironverbs::uverbs::doorbell::SendDoorbell::new>";
    assert!(function(&["syscall", "ret"]).faults(true, "rxe").is_empty());
    assert_eq!(function(&["syscall", "ret"]).faults(true, "mlx5").len(), 1, "its doorbell is a store");
    assert!(function(&["ret"]).faults(true, "mlx5").is_empty());
    assert!(function(&["syscall", otherwise, "ret"]).faults(true, "rxe").is_empty());
    assert!(function(&["syscall", hashed, "ret"]).faults(true, "rxe").is_empty());
    assert_eq!(function(&["syscall", other, "ret"]).faults(true, "rxe").len(), 1);
    assert_eq!(function(&["ret"]).faults(true, "rxe").len(), 1);
    assert_eq!(function(&["syscall", otherwise, otherwise, "ret"]).faults(true, "rxe").len(), 1);
}
