//! `inspect --adapters`: what graphics adapters there are, and what decides which kernels run on them.

use std::fmt::Write as _;

use serde_json::{Value, json};
use turbospark::device_wgpu::{Adapter, AdapterKind, Capabilities};

use crate::console;
use crate::outcome::Outcome;

pub fn run(as_json: bool) -> anyhow::Result<Outcome> {
    let all = Adapter::all();
    if as_json {
        let list: Vec<Value> = all.iter().enumerate().map(|(i, a)| object(i, a)).collect();
        console::print_json(&json!({ "adapters": list }))?;
    } else if all.is_empty() {
        console::print("no graphics adapter\n")?;
    } else {
        let text: String = all.iter().enumerate().map(|(i, a)| table(i, a)).collect();
        console::print(&text)?;
    }
    Ok(Outcome::Done)
}

/// What `--adapter` chose, as JSON.
pub fn chosen(name: Option<&str>) -> Option<Value> {
    let adapter = Adapter::choose(name).ok()?;
    let at = Adapter::all().iter().position(|a| a.name() == adapter.name() && a.api() == adapter.api())?;
    Some(object(at, &adapter))
}

fn kind(adapter: &Adapter) -> &'static str {
    match adapter.kind() {
        AdapterKind::Discrete => "discrete",
        AdapterKind::Integrated => "integrated",
        AdapterKind::Virtual => "virtual",
        AdapterKind::Software => "software",
        _ => "other",
    }
}

/// Which variants of the kernels run with `--precision auto`, by what they are for. In f32 there are tiles of f32 alone.
fn kernels(c: &Capabilities) -> [(&'static str, String); 3] {
    let tiles = if c.f16 { "f16 tiles" } else { "f32 tiles" };
    let matrices = match c.matrix_side {
        Some(side) => format!("matrix units of {side} x {side} in f16"),
        None => tiles.into(),
    };
    let sums = match c.subgroups {
        Some((least, most)) if least == most => format!("subgroups of {least}"),
        Some((least, most)) => format!("subgroups of {least} to {most}"),
        None => "workgroup memory".into(),
    };
    [("prompts and pictures", matrices.clone()), ("decoded rows", sums), ("attention", matrices)]
}

fn object(i: usize, a: &Adapter) -> Value {
    let c = a.capabilities();
    let kernels: serde_json::Map<String, Value> = kernels(&c).into_iter().map(|(k, v)| (k.into(), v.into())).collect();
    json!({
        "index": i,
        "name": a.name(),
        "api": a.api(),
        "driver": a.driver(),
        "kind": kind(a),
        "f16": c.f16,
        "subgroups": c.subgroups.map(|(least, most)| [least, most]),
        "matrices": c.matrices,
        "pipeline_cache": c.pipeline_cache,
        "memory_bytes": c.memory_bytes,
        "buffer_bytes": c.buffer_bytes,
        "binding_bytes": c.binding_bytes,
        "offset_align": c.offset_align,
        "workgroup_bytes": c.workgroup_bytes,
        "workgroup_threads": c.workgroup_threads,
        "kernels": kernels,
    })
}

fn table(i: usize, a: &Adapter) -> String {
    let c = a.capabilities();
    let mut out = format!("{i}  {} ({}, {})\n", a.name(), a.api(), kind(a));
    let mut line = |what: &str, value: String| {
        let _ = writeln!(out, "   {what:<22} {value}");
    };
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
    line("driver", a.driver());
    if let Some(bytes) = c.memory_bytes {
        line("memory", mib(bytes));
    }
    line("buffers", format!("at most {}, {} of it seen at once", mib(c.buffer_bytes), mib(c.binding_bytes)));
    line("alignment", format!("{} bytes", c.offset_align));
    line("workgroups", format!("{} threads, {} KiB", c.workgroup_threads, c.workgroup_bytes / 1024));
    let matrices = if c.matrices.is_empty() { "none".into() } else { c.matrices.join("; ") };
    line("matrix units", matrices);
    for (what, how) in kernels(&c) {
        line(what, how);
    }
    out
}
