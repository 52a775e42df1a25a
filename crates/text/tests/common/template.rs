//! A template in the manner of the family: tools, thinking, images, all that the real ones use.

pub const QWEN_LIKE: &str = r#"{%- set image_count = namespace(value=0) %}
{%- macro show(content) %}
    {%- if content is string %}
        {{- content }}
    {%- else %}
        {%- for part in content %}
            {%- if part.type == 'image' or 'image_url' in part %}
                {%- set image_count.value = image_count.value + 1 %}
                {%- if add_vision_id %}Picture {{ image_count.value }}: {% endif -%}
                <|vision_start|><|image_pad|><|vision_end|>
            {%- elif part.type == 'text' %}
                {{- part.text }}
            {%- else %}
                {{- raise_exception('part ' ~ part.type ~ ' is unknown') }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if not messages %}
    {{- raise_exception('No messages provided.') }}
{%- endif %}
{%- if tools and tools is iterable and tools is not mapping %}
    {{- '<|im_start|>system\n# Tools\n\n<tools>' }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\n</tools>' }}
    {%- if messages[0].role == 'system' %}
        {{- '\n\n' + show(messages[0].content) | trim }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + show(messages[0].content) | trim + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" %}
        {%- set text = show(message.content) | trim %}
        {%- if not (text.startswith('<tool_response>') and text.endswith('</tool_response>')) %}
            {%- set ns.searching = false %}
            {%- set ns.last_query = index %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- set image_count.value = 0 %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- if loop.first %}{% continue %}{% endif %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\n' + show(message.content) + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = show(message.content) | trim %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query %}
            {{- '<|im_start|>assistant\n<think>\n' + reasoning.strip() + '\n</think>\n\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function is defined %}{% set call = call.function %}{% endif %}
            {{- '\n<tool_call>\n<function=' + call.name + '>\n' }}
            {%- for name, value in call.arguments.items() %}
                {{- '<parameter=' + name + '>\n' }}
                {%- set value = value | tojson if value is mapping or (value is sequence and value is not string) else value | string %}
                {{- value + '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem is undefined or loop.previtem.role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + show(message.content) + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- else %}
        {{- '<think>\n' }}
    {%- endif %}
{%- endif %}
"#;
