//! Chat templates: what the family's real ones use, and what a hostile one tries.

mod common;
#[path = "common/template.rs"]
mod family;

use std::time::{Duration, Instant, UNIX_EPOCH};

use common::*;
use family::QWEN_LIKE;
use serde_json::{Map, Value, json};
use turbospark_text::{ChatTemplate, ChatTemplates, RenderOptions, TemplateTexts, TextError, encode_chat};

/// Renders messages with a template and shows control tokens as `⟦..⟧`.
fn show(source: &str, chat: Value, options: &RenderOptions) -> Result<String, TextError> {
    let tokenizer = byte_tokenizer();
    let template = ChatTemplate::new(source)?;
    let segments = template.render(&tokenizer, &messages(chat), options)?;
    Ok(marked(&tokenizer, &segments))
}

/// Renders an expression that needs no messages.
fn eval(source: &str) -> Result<String, TextError> {
    show(source, json!([]), &RenderOptions::default())
}

fn with_kwargs(kwargs: Value) -> RenderOptions {
    RenderOptions { template_kwargs: serde_json::from_value(kwargs).unwrap(), ..open_turn() }
}

#[test]
fn the_thinking_switch_works() {
    let tokenizer = byte_tokenizer();
    let template = ChatTemplate::new(QWEN_LIKE).unwrap();
    let expected = json("cases/expect/S15.json");
    for item in expected["items"].as_array().unwrap() {
        let request = json(&format!("cases/inputs/{}", item["request"].as_str().unwrap()));
        let kwargs = request["chat_template_kwargs"].clone();
        let options = with_kwargs(kwargs);
        let chat = messages(request["messages"].clone());
        let segments = template.render(&tokenizer, &chat, &options).unwrap();
        let end = item["expect"]["prompt_ends_with"].as_str().unwrap();
        assert!(text(&tokenizer, &segments).ends_with(end));
    }
    assert!(template.reads("enable_thinking") && template.reads("add_vision_id"));
    assert!(!template.reads("enable_thinkign"));
}

#[test]
fn for_a_checkpoint_without_thinking_the_switch_changes_nothing() {
    let tokenizer = tokenizer(TINY);
    let template = template(TINY);
    let chat = messages(json!([{"role": "user", "content": "hi"}]));
    let plain = template.render(&tokenizer, &chat, &open_turn()).unwrap();
    let switched = with_kwargs(json!({"enable_thinking": false}));
    assert_eq!(template.render(&tokenizer, &chat, &switched).unwrap(), plain);
    assert!(!template.reads("enable_thinking"));
}

#[test]
fn tools_calls_and_results_are_rendered_as_the_reference_renders_them() {
    let options = RenderOptions {
        tools: Some(json!([{"type": "function", "function": {
            "name": "weather", "description": "It's <b>hot</b> & \"dry\" – ok?",
            "parameters": {"type": "object", "properties": {"zip": {"type": "string"}, "a": {"minimum": 0.5}}}}}])),
        ..open_turn()
    };
    let chat = json!([
        {"role": "system", "content": "  Be brief.\n"},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather",
             "arguments": "{\"zip\": \"01234\", \"days\": 2, \"celsius\": true, \"more\": {\"b\": [1, null]}}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "{\"t\": 20}"},
        {"role": "tool", "tool_call_id": "c2", "content": "none"}
    ]);
    let shown = show(QWEN_LIKE, chat, &options).unwrap();
    assert_eq!(
        shown,
        concat!(
            "⟦<|im_start|>⟧system\n# Tools\n\n<tools>\n",
            r#"{"type": "function", "function": {"name": "weather", "description": "It's <b>hot</b> & \"dry\" – ok?", "parameters": {"type": "object", "properties": {"zip": {"type": "string"}, "a": {"minimum": 0.5}}}}}"#,
            "\n</tools>\n\nBe brief.⟦<|im_end|>⟧\n",
            "⟦<|im_start|>⟧user\nWeather?⟦<|im_end|>⟧\n",
            "⟦<|im_start|>⟧assistant\n⟦<think>⟧\n\n⟦</think>⟧\n\n\n",
            "⟦<tool_call>⟧\n<function=weather>\n<parameter=zip>\n01234\n</parameter>\n",
            "<parameter=days>\n2\n</parameter>\n<parameter=celsius>\nTrue\n</parameter>\n",
            "<parameter=more>\n{\"b\": [1, null]}\n</parameter>\n</function>\n⟦</tool_call>⟧⟦<|im_end|>⟧\n",
            "⟦<|im_start|>⟧user\n⟦<tool_response>⟧\n{\"t\": 20}\n⟦</tool_response>⟧",
            "\n⟦<tool_response>⟧\nnone\n⟦</tool_response>⟧⟦<|im_end|>⟧\n",
            "⟦<|im_start|>⟧assistant\n⟦<think>⟧\n"
        )
    );
}

#[test]
fn earlier_thoughts_are_cut_by_the_template_and_kept_in_the_last_turn() {
    let thought = "<think>\nhm\n</think>\n\nYes.";
    let chat = json!([
        {"role": "user", "content": "a"}, {"role": "assistant", "content": thought},
        {"role": "user", "content": "b"}, {"role": "assistant", "content": thought}
    ]);
    let shown = show(QWEN_LIKE, chat, &RenderOptions::default()).unwrap();
    assert!(shown.contains("assistant\nYes.⟦<|im_end|>⟧\n⟦<|im_start|>⟧user\nb"), "{shown}");
    assert!(shown.ends_with("assistant\n⟦<think>⟧\nhm\n⟦</think>⟧\n\nYes.⟦<|im_end|>⟧\n"), "{shown}");
    let chat = json!([{"role": "user", "content": "a"},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}]);
    let shown = show(QWEN_LIKE, chat, &RenderOptions::default()).unwrap();
    assert!(shown.ends_with("⟦<think>⟧\nhm\n⟦</think>⟧\n\nYes.⟦<|im_end|>⟧\n"), "{shown}");
}

#[test]
fn tojson_writes_what_python_writes() {
    let options = with_kwargs(json!({"v": {
        "z": [1, -2.0, 1e16, 1e-7, true, null, "é\u{7f}\u{1}\n\t\"\\/<>&'"], "a": {}, "b": []}}));
    let show = |source: &str| show(source, json!([]), &options).unwrap();
    let plain =
        "{\"z\": [1, -2.0, 1e+16, 1e-07, true, null, \"é\u{7f}\\u0001\\n\\t\\\"\\\\/<>&'\"], \"a\": {}, \"b\": []}";
    assert_eq!(show("{{ v | tojson }}"), plain);
    assert_eq!(show("{{ v | tojson(ensure_ascii=False) }}"), plain);
    let ascii = plain.replace('é', "\\u00e9");
    assert_eq!(show("{{ v | tojson(ensure_ascii=True) }}"), ascii);
    assert_eq!(
        show("{{ {'b': [1, {}], 'a': 'x'} | tojson(indent=2) }}"),
        "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": \"x\"\n}"
    );
    assert_eq!(show("{{ {'b': 1, 'a': 2} | tojson(sort_keys=True) }}"), r#"{"a": 2, "b": 1}"#);
    assert_eq!(show("{{ [1, {'a': 2}] | tojson(separators=(',', ':')) }}"), r#"[1,{"a":2}]"#);
    assert_eq!(show("{{ {1: 2, none: 3} | tojson }}"), r#"{"1": 2, "null": 3}"#);
    assert!(eval("{{ missing | tojson }}").is_err());
    assert!(eval("{{ [1] | tojson(indent=100000000) }}").is_err());
    assert!(eval("{{ [1] | tojson(nonsense=1) }}").is_err());
}

#[test]
fn values_are_printed_as_python_prints_them() {
    assert_eq!(eval("{{ true }} {{ none }} {{ 1.0 }} {{ ['a', 1] }}").unwrap(), "True None 1.0 ['a', 1]");
    assert_eq!(eval("{{ '\u{1c} a\u{1f}'.strip() }}|{{ ' b ' | trim }}|{{ 'xax'.strip('x') }}").unwrap(), "a|b|a");
    assert_eq!(
        eval("{{ missing }}|{{ 'a,b'.split(',')[-1] }}|{{ {'a': 1}.items() | list | length }}").unwrap(),
        "|b|1"
    );
}

#[test]
fn blocks_are_trimmed_and_loops_can_be_left() {
    let source = "a\n    {% for i in range(5) %}\n{% if i == 1 %}{% continue %}{% endif %}\n{% if i == 3 %}{% break %}{% endif %}\n{{ i }}\n    {% endfor %}\nb\n";
    assert_eq!(eval(source).unwrap(), "a\n0\n2\nb");
    let source = "x{%- generation -%} y {%- endgeneration %}\nz";
    assert_eq!(eval(source).unwrap(), "xyz");
}

#[test]
fn the_date_is_the_one_given() {
    let options =
        RenderOptions { now: Some(UNIX_EPOCH + Duration::from_secs(1_709_210_096)), ..RenderOptions::default() };
    let shown = show("{{ strftime_now('%d %B %Y') }}", json!([]), &options).unwrap();
    assert_eq!(shown, "29 February 2024");
    assert!(eval("{{ strftime_now('%Q') }}").unwrap_err().to_string().contains("%Q"));
}

#[test]
fn a_refusal_of_the_template_is_told_apart_from_its_faults() {
    let error = show(QWEN_LIKE, json!([]), &open_turn()).unwrap_err();
    assert!(matches!(&error, TextError::TemplateRefused(m) if m == "No messages provided."));
    let error = eval("{{ missing.field }}").unwrap_err();
    assert!(matches!(&error, TextError::Template(_)), "{error}");
    let error = ChatTemplate::new("a\n{% if %}").unwrap_err();
    assert!(error.to_string().contains("chat_template:2"), "{error}");
}

#[test]
fn the_source_is_found_where_checkpoints_keep_it() {
    let tokenizer = byte_tokenizer();
    let name = |jinja: Option<&str>, config: Value| {
        let template = ChatTemplate::from_files(jinja, Some(&config.to_string()))?;
        let segments = template.render(&tokenizer, &[], &RenderOptions::default())?;
        Ok::<_, TextError>(text(&tokenizer, &segments))
    };
    assert_eq!(name(Some("file"), json!({"chat_template": "config"})).unwrap(), "file");
    assert_eq!(name(None, json!({"chat_template": "config"})).unwrap(), "config");
    let list = json!([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]);
    assert_eq!(name(None, json!({"chat_template": list})).unwrap(), "d");
    let none = json!({"chat_template": [{"name": "rag", "template": "r"}]});
    assert!(name(None, none).unwrap_err().to_string().contains("default"));
    assert!(name(None, json!({})).is_err());
    assert!(name(None, json!({"chat_template": 1})).is_err());
    assert!(ChatTemplate::from_files(None, None).is_err());
    let named = "{{ eos_token }}|{{ bos_token is defined }}";
    assert_eq!(name(Some(named), json!({})).unwrap(), "<|im_end|>|False");
}

#[test]
fn several_templates_are_found_by_name_wherever_they_are() {
    let list = |names: &[&str]| -> String {
        let each = names.iter().map(|name| json!({"name": name, "template": format!("config {name}")}));
        json!({"chat_template": each.collect::<Vec<_>>()}).to_string()
    };
    let tokenizer = byte_tokenizer();
    let shown = |template: Option<ChatTemplate>| {
        let segments = template?.render(&tokenizer, &[], &RenderOptions::default()).unwrap();
        Some(text(&tokenizer, &segments))
    };
    let of = |texts: TemplateTexts<'_>| ChatTemplates::read(&texts).unwrap();
    let files = [("rag".to_owned(), "file rag".to_owned()), ("tool_use".to_owned(), "file tools".to_owned())];
    let config = list(&["rag", "tool_use", "default", "more"]);
    let config = Some(config.as_str());

    let all =
        of(TemplateTexts { jinja: Some("file"), additional: &files, tokenizer_config: config, ..Default::default() });
    assert_eq!(all.names(), r#""default", "rag", "tool_use", "more""#);
    assert_eq!(shown(all.own().unwrap()).as_deref(), Some("file"));
    assert_eq!(shown(all.for_tools().unwrap()).as_deref(), Some("file tools"));
    assert_eq!(shown(all.named("rag").unwrap()).as_deref(), Some("file rag"));
    assert_eq!(shown(all.named("more").unwrap()).as_deref(), Some("config more"));
    assert!(all.named("other").unwrap().is_none());

    // A file alone is one template for all messages, whatever older places have for tools.
    let file = of(TemplateTexts { jinja: Some("file"), tokenizer_config: config, ..Default::default() });
    assert!(file.for_tools().unwrap().is_none());
    let listed = of(TemplateTexts { tokenizer_config: config, ..Default::default() });
    assert_eq!(shown(listed.for_tools().unwrap()).as_deref(), Some("config tool_use"));

    // The older file of one template, before the tokenizer's.
    let json = of(TemplateTexts {
        json: Some(r#"{"chat_template": "json"}"#),
        tokenizer_config: config,
        ..Default::default()
    });
    assert_eq!(shown(json.own().unwrap()).as_deref(), Some("json"));
    let processor = r#"{"chat_template": {"default": "processor", "rag": "r"}}"#;
    let processor = of(TemplateTexts { processor_config: Some(processor), ..Default::default() });
    assert_eq!(
        (processor.names().as_str(), shown(processor.own().unwrap()).as_deref()),
        (r#""default", "rag""#, Some("processor"))
    );

    // None for all messages: which, has to be said.
    let named = of(TemplateTexts { additional: &files, ..Default::default() });
    assert!(named.own().unwrap_err().to_string().contains(r#"but "rag", "tool_use""#));
    assert!(of(TemplateTexts::default()).own().unwrap().is_none());
    let wrong = ChatTemplates::read(&TemplateTexts { json: Some("{"), ..Default::default() }).unwrap_err();
    assert!(wrong.to_string().contains("chat_template.json"), "{wrong}");
}

#[test]
fn hostile_templates_end_soon_with_an_error() {
    let sources = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 2000000000 }}",
        "{{ 'x' * 9000000 }}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('x', ns.s) %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'some text that is written out again and again' }}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | tojson }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{% include 'chat_template' %}",
        "{{ range(0, 1000000000000) | list }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:>999999999}'.format('x') }}",
        "{% for i in range(9999) %}{{ '{:>99999}'.format('x') }}{% endfor %}",
    ];
    for source in sources {
        let begin = Instant::now();
        assert!(eval(source).is_err(), "{source}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{source}");
    }
    let nested = "(".repeat(200_000);
    assert!(ChatTemplate::new(&format!("{{{{ {nested} }}}}")).is_err());
    assert!(ChatTemplate::new(&" ".repeat(2 << 20)).is_err());
}

#[test]
fn templates_that_ask_for_much_get_little() {
    // These may give a text, but a small one.
    let sources = [
        "{{ 'a' | indent(999999999, true) }}",
        "{{ [1] | batch(999999999, 'x') | list | length }}",
        "{{ [1] | slice(999999999, 'x') | list | length }}",
        "{{ 1.5 | round(999999999) }}",
        "{{ '%.999999999f' % 1.5 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:.999999999f}'.format(1.5) }}",
        "{{ 10 ** 999999999 }}",
        "{{ [[1] * 99999] * 99999 }}",
        "{{ [[1] * 99999] * 99999 | tojson }}",
        "{{ ([[1] * 99999] * 99999) | tojson }}",
        "{{ ([[1] * 99999] * 99999) | string }}",
        "{{ '{}'.format([[1] * 99999] * 99999) | length }}",
        "{{ ''.join([[[1] * 99999] * 99999]) | length }}",
        "{{ '%s' % ([[1] * 99999] * 99999) }}",
        "{{ ([[1] * 99999] * 99999) | length }}",
        "{{ raise_exception([[1] * 99999] * 99999) }}",
        "{{ ([[1] * 99999] * 99999) | trim | length }}",
        "{{ ([[1] * 99999] * 99999).foo() }}",
        "{{ {'a': [[1] * 99999] * 99999}[[[1] * 99999] * 99999] }}",
        "{{ ([1] * 999999999) | length }}",
        "{{ 'ab' | replace('', 'x' * 99999) | length }}",
    ];
    for source in sources {
        let begin = Instant::now();
        if let Ok(text) = eval(source) {
            assert!(text.len() < 1 << 20, "{source}");
        }
        assert!(begin.elapsed() < Duration::from_secs(5), "{source}");
    }
}

#[test]
fn a_long_conversation_stays_within_the_budget() {
    let turn = |i: usize| {
        let role = ["user", "assistant"][i % 2];
        json!({"role": role, "content": format!("<p>{}</p>", "word ".repeat(200))})
    };
    let chat: Vec<Value> = (0..3000).map(turn).collect();
    let shown = show(QWEN_LIKE, Value::Array(chat), &open_turn()).unwrap();
    assert!(shown.len() > 3_000_000);
}

#[test]
fn arguments_cannot_replace_what_the_request_sets() {
    for name in ["messages", "tools", "add_generation_prompt", "turbospark_marks"] {
        let mut kwargs = Map::new();
        kwargs.insert(name.into(), json!([]));
        let options = RenderOptions { template_kwargs: kwargs, ..open_turn() };
        let error = show("{{ messages }}", json!([]), &options).unwrap_err();
        assert!(matches!(error, TextError::ReservedArgument(n) if n == name));
    }
}

#[test]
fn text_parts_are_joined_for_templates_that_know_strings_only() {
    let source = "{% for m in messages %}{{ m.content.strip() }}{% endfor %}";
    let chat = json!([{"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    assert_eq!(show(source, chat, &open_turn()).unwrap(), "ab");
}

#[test]
fn pictures_are_numbered_where_asked() {
    let tokenizer = byte_tokenizer();
    let template = ChatTemplate::new(QWEN_LIKE).unwrap();
    let chat = messages(json!([{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "x"}]}]));
    let options = with_kwargs(json!({"add_vision_id": true}));
    let places = placeholders(&tokenizer);
    let (segments, prompt) = encode_chat(&template, &tokenizer, &places, &chat, &options).unwrap();
    assert_eq!(prompt.image_slots.len(), 1);
    let shown = marked(&tokenizer, &segments);
    assert!(shown.contains("user\nPicture 1: ⟦<|vision_start|>⟧⟦<|image_pad|>⟧⟦<|vision_end|>⟧x"), "{shown}");
}

#[test]
fn the_checkpoints_own_templates_render() {
    for checkpoint in [FIXTURES[0], FIXTURES[1], TINY] {
        let tokenizer = tokenizer(checkpoint);
        let chat = messages(json!([{"role": "user", "content": "hi"}]));
        let segments = template(checkpoint).render(&tokenizer, &chat, &open_turn()).unwrap();
        let expected = "⟦<|im_start|>⟧user\nhi⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\n";
        assert_eq!(marked(&tokenizer, &segments), expected);
    }
}
