//! The memory plan, for people and for programs.

use serde_json::{Value, json};
use turbospark::{DiskSpeed, MemoryPlan, Model};
use turbospark_hub::Bytes;

/// One object: terms, what is read again, what the disk gives, and what more memory would change.
pub fn object(model: &Model) -> anyhow::Result<Value> {
    let (plan, speed) = (model.memory_plan(), model.read_speed()?);
    let speed = speed.as_ref();
    let terms: Vec<Value> =
        plan.terms.iter().map(|t| json!({"what": t.what, "bytes": t.bytes, "on_adapter": t.on_adapter})).collect();
    let more = |plan: &MemoryPlan| {
        json!({
            "ceiling": plan.ceiling,
            "streamed_layers": plan.residency.layers.len(),
            "vision_streamed": plan.residency.vision,
            "expert_slots": plan.residency.expert_slots,
            "most_patches": plan.most_patches,
            "read_per_token": plan.read_per_token,
            "read_beside_images": plan.read_beside_images,
            "read_per_image": plan.read_per_image,
            "most_tokens_per_second": most_tokens(plan, speed),
        })
    };
    Ok(json!({
        "ceiling": plan.ceiling,
        "free": plan.free.as_ref().map(|f| json!({"bytes": f.bytes, "group": f.group, "reserve": f.reserve()})),
        "total": plan.total(),
        "adapter_ceiling": plan.adapter,
        "adapter_total": plan.adapter_total(),
        "terms": terms,
        "context": plan.context,
        "streamed_layers": plan.residency.layers,
        "head_streamed": plan.residency.head,
        "vision_streamed": plan.residency.vision,
        "expert_slots": plan.residency.expert_slots,
        "most_patches": plan.most_patches,
        "lent_bytes": plan.lent_bytes,
        "lent_layers": plan.residency.lent_layers,
        "lent_experts": plan.residency.lent_experts,
        "read_per_token": plan.read_per_token,
        "read_beside_images": plan.read_beside_images,
        "read_per_image": plan.read_per_image,
        "disk_bytes_per_second": speed.map(|s| s.bytes_per_s),
        "disk": speed.map(|s| json!({"device": s.device, "age_s": s.age.as_secs()})),
        "most_tokens_per_second": most_tokens(plan, speed),
        "with_more": model.memory_outlook().iter().map(more).collect::<Vec<_>>(),
    }))
}

/// What the disk allows; `None` where nothing is read again.
fn most_tokens(plan: &MemoryPlan, speed: Option<&DiskSpeed>) -> Option<f64> {
    speed.filter(|_| plan.read_per_token > 0).map(|s| s.bytes_per_s / plan.read_per_token as f64)
}

/// The same for people.
pub fn table(model: &Model) -> anyhow::Result<String> {
    let (plan, speed) = (model.memory_plan(), model.read_speed()?);
    let mut out = String::new();
    let own = plan.adapter_total() > 0;
    if own {
        out += "on the graphics adapter, in memory of its own\n";
        let mut line = |bytes: u64, what: &str| out += &format!("{:>12}  {what}\n", Bytes(bytes).to_string());
        plan.terms.iter().filter(|term| term.on_adapter).for_each(|term| line(term.bytes, &term.what));
        line(plan.adapter_total(), "in all");
        if let Some(room) = plan.adapter {
            line(room, "may be used");
        }
        out += "\nin the machine's memory\n";
    }
    let mut line = |bytes: u64, what: &str| out += &format!("{:>12}  {what}\n", Bytes(bytes).to_string());
    plan.terms.iter().filter(|term| !term.on_adapter).for_each(|term| line(term.bytes, &term.what));
    line(plan.total(), "in all");
    match (plan.ceiling, &plan.free) {
        (Some(ceiling), None) => line(ceiling, "ceiling"),
        (Some(ceiling), Some(free)) => {
            line(
                free.bytes,
                &free.group.as_ref().map_or("free now".into(), |g| format!("left by memory group {g} now")),
            );
            line(ceiling, &format!("ceiling: that less a reserve of {}, and the program", Bytes(free.reserve())));
        }
        (None, _) => {}
    }
    if !plan.streams() {
        out += if own { "\nall weights stay on the adapter\n" } else { "\nall weights stay in memory\n" };
        return Ok(out);
    }
    let (layers, experts) = (plan.residency.lent_layers.len(), plan.residency.lent_experts);
    let lent = [(layers, "layer"), (experts, "expert")].into_iter().filter(|(count, _)| *count > 0);
    let lent: Vec<String> =
        lent.map(|(count, of)| format!("{count} {of}{}", if count == 1 { "" } else { "s" })).collect();
    let mut beside = String::new();
    if !lent.is_empty() {
        let (lent, room) = (lent.join(" and "), Bytes(plan.lent_bytes));
        out += &format!("\nwhile there are no images, {room} of their room hold {lent} more\n");
        beside = format!(" ({} beside images)", Bytes(plan.read_beside_images));
    }
    let (token, image) = (Bytes(plan.read_per_token), Bytes(plan.read_per_image));
    out += &format!("\nread again: {token} for each token{beside}, {image} for each image or several at once\n");
    if let (Some(speed), Some(tokens)) = (&speed, most_tokens(plan, speed.as_ref())) {
        let when = match speed.age.as_secs() / 3600 {
            _ if speed.age.is_zero() => "now".into(),
            hours @ 0..48 => format!("{hours} hours ago"),
            hours => format!("{} days ago", hours / 24),
        };
        let disk = Bytes(speed.bytes_per_s as u64);
        out += &format!("{} gave {disk} a second {when}: at most {tokens:.2} tokens a second\n", speed.device);
    }
    let more = model.memory_outlook();
    if !more.is_empty() {
        out += "\nwith more memory\n";
        out += &format!("{:>12}{:>18}{:>18}{:>14}\n", "--memory", "read a token", "read an image", "tokens/s");
    }
    for plan in &more {
        let tokens = most_tokens(plan, speed.as_ref()).map_or("all fits".into(), |t| format!("{t:.2}"));
        let [ceiling, token, image] = [plan.ceiling.unwrap_or(0), plan.read_per_token, plan.read_per_image].map(Bytes);
        out += &format!("{:>12}{:>18}{:>18}{tokens:>14}\n", ceiling.to_string(), token.to_string(), image.to_string());
    }
    Ok(out)
}
