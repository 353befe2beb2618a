-- Wireshark dissector for the native protocol of Tally, version 2 (docs/PROTOCOL.md).
--
-- To install, copy this file to the folder that Wireshark names under
-- Help > About Wireshark > Folders > Personal Lua Plugins, and press Ctrl+Shift+L:
--
--     Linux, macOS   ~/.local/lib/wireshark/plugins/tally.lua
--     Windows        %APPDATA%\Wireshark\plugins\tally.lua
--
-- or try it without installing:
--
--     tshark -X lua_script:docs/wireshark/tally.lua -r job.pcapng
--
-- Where Wireshark runs as root and its init.lua says `run_user_scripts_when_superuser = false`,
-- it ignores all such files; run it as an ordinary user, who is in the group `wireshark` to
-- capture.
--
-- Ports: 31249 and the 15 after it. A switch with another base port or more shards:
-- Edit > Preferences > Protocols > TALLY, or `-o tally.port:40000 -o tally.shards:32`.
--
-- Filters to begin with:
--
--     tally.malformed                             frames that the switch drops for their form (F-5)
--     tally.type == 5 && tally.flags.resend       contributions that were sent again
--     tally.job == 7 && tally.fragment == 4711    the life of one fragment
--     tally.type == 3 && tally.reason != 1        who was refused, and why
--     tally.type == 6 && tally.flags.from_ps      results that the parameter server had to finish
--
-- The dissector looks at one frame at a time. So it says nothing about what depends on the
-- state of a job (epoch, binding, window), and it does not check MACs: it has no keys.

local PORT_DEFAULT = 31249
local SHARDS_DEFAULT = 16
local HEADER_BYTES = 22
local UNIT_BYTES = 64
local UNITS_MAX = 128
local CONTROL_UNITS = 2
local MAC_AT = 112
local ELEMENTS_SHOWN_MAX = 16
local SWITCH, PS = 254, 255

local tally = Proto("tally", "Tally in-network aggregation")

-- Names -------------------------------------------------------------------------------------

local TYPE = {
  [1] = "JOIN", [2] = "ACCEPT", [3] = "REFUSE", [4] = "LEAVE", [5] = "DATA",
  [6] = "RESULT", [7] = "PARTIAL", [8] = "REMIND", [9] = "NOT_HERE", [10] = "NACK",
  [11] = "PROBE",
}
local JOIN, ACCEPT, REFUSE, LEAVE, DATA, RESULT = 1, 2, 3, 4, 5, 6
local PARTIAL, REMIND, NOT_HERE, NACK, PROBE = 7, 8, 9, 10, 11
local TAG_BYTES = 8
local ELEMENT = { [0] = "none", [1] = "i32", [2] = "f32", [3] = "scale", [4] = "f16", [5] = "bf16", [6] = "i16", [7] = "i8" }
local I32, F32, SCALE, F16, BF16, I16, I8 = 1, 2, 3, 4, 5, 6, 7
local ELEMENT_BYTES = { [I32] = 4, [F32] = 4, [SCALE] = 1, [F16] = 2, [BF16] = 2, [I16] = 2, [I8] = 1 }
local ROLE = { [0] = "worker", [1] = "PS", [2] = "switch" }
local RUNNING = { [0] = "no", [1] = "yes" }
local STATE = { [0] = "waiting", [1] = "running", [2] = "ended" }
local LEAVE_CODE = { [0] = "finished", [1] = "failed", [2] = "overflow", [3] = "interrupted",
  [4] = "stalled" }
local LEAVE_ROLE = { [0] = "worker or PS", [2] = "switch" }
local REASON = {
  [1] = "CHALLENGE", [2] = "UNKNOWN_JOB", [3] = "BAD_MAC", [4] = "BAD_RANK", [5] = "WORKERS", [6] = "PAYLOAD",
  [7] = "SHAPE", [8] = "RANK_TAKEN", [9] = "MEMBER_LOST", [10] = "MEMBER_FAILED", [11] = "STALE_EPOCH",
  [12] = "WINDOW", [13] = "REMOVED", [14] = "DRAINING", [15] = "TENANT_JOBS", [16] = "TENANT_WORKERS",
  [17] = "PARENT", [18] = "PARTS",
}
local FINALITY = {
  [1] = "not final: say it again with this challenge", [2] = "hint, without a MAC", [3] = "hint, without a MAC",
  [4] = "final", [5] = "final", [6] = "final", [7] = "final", [8] = "not final", [9] = "final", [10] = "final",
  [11] = "final", [12] = "final", [13] = "final", [14] = "not final", [15] = "not final", [16] = "not final",
  [17] = "not final", [18] = "not final",
}
local RANK = { [SWITCH] = "switch", [PS] = "parameter server" }
for r = 0, 63 do RANK[r] = "worker" end

-- Fields ------------------------------------------------------------------------------------

local f = {
  version = ProtoField.uint8("tally.version", "Version", base.DEC, nil, 0xf0),
  type = ProtoField.uint8("tally.type", "Type", base.DEC, TYPE, 0x0f),
  flags = ProtoField.uint8("tally.flags", "Flags", base.HEX),
  resend = ProtoField.bool("tally.flags.resend", "Resend", 8, nil, 0x01),
  overflow = ProtoField.bool("tally.flags.overflow", "Overflow", 8, nil, 0x02),
  from_ps = ProtoField.bool("tally.flags.from_ps", "From the parameter server", 8, nil, 0x04),
  finished = ProtoField.bool("tally.flags.finished", "Finished", 8, nil, 0x08),
  marked = ProtoField.bool("tally.flags.marked", "Met congestion", 8, nil, 0x10),
  collision = ProtoField.bool("tally.flags.collision", "Met a full pool", 8, nil, 0x20),
  flags_reserved = ProtoField.uint8("tally.flags.reserved", "Reserved", base.HEX, nil, 0xc0),
  priority = ProtoField.uint8("tally.priority", "Priority"),
  element_reserved = ProtoField.uint8("tally.element.reserved", "Reserved", base.HEX, nil, 0xf0),
  element = ProtoField.uint8("tally.element", "Element", base.DEC, ELEMENT, 0x0f),
  job = ProtoField.uint16("tally.job", "Job"),
  epoch = ProtoField.uint16("tally.epoch", "Epoch"),
  fragment = ProtoField.uint32("tally.fragment", "Fragment"),
  rank = ProtoField.uint8("tally.rank", "Rank", base.DEC, RANK),
  units = ProtoField.uint8("tally.units", "Units"),
  bitmap = ProtoField.uint64("tally.bitmap", "Bitmap", base.HEX),
  contributions = ProtoField.uint8("tally.contributions", "Contributions"),
  tag = ProtoField.uint64("tally.tag", "Tag", base.HEX),
  -- elements
  payload = ProtoField.bytes("tally.payload", "Payload"),
  i32 = ProtoField.int32("tally.i32", "i32"),
  f32 = ProtoField.float("tally.f32", "f32"),
  scale = ProtoField.uint8("tally.scale", "Scale"),
  f16 = ProtoField.float("tally.f16", "f16"),
  bf16 = ProtoField.float("tally.bf16", "bf16"),
  i16 = ProtoField.int16("tally.i16", "i16"),
  i8 = ProtoField.int8("tally.i8", "i8"),
  -- control
  instance = ProtoField.uint64("tally.instance", "Instance", base.HEX),
  challenge = ProtoField.uint64("tally.challenge", "Challenge", base.HEX),
  role = ProtoField.uint8("tally.role", "Role", base.DEC, ROLE),
  workers = ProtoField.uint8("tally.workers", "Workers"),
  job_units = ProtoField.uint8("tally.job_units", "Units of element payloads"),
  running = ProtoField.uint8("tally.running", "Has run in this epoch", base.DEC, RUNNING),
  window = ProtoField.uint16("tally.window", "Window"),
  shape = ProtoField.bytes("tally.shape", "Shape"),
  sent = ProtoField.uint32("tally.sent", "First fragment not contributed to"),
  has_sent = ProtoField.uint8("tally.has_sent", "Says how far it is", base.DEC, RUNNING),
  awaiting = ProtoField.uint16("tally.awaiting", "Awaits results, of 1000 parts of the time"),
  slowest = ProtoField.uint8("tally.slowest", "Slowest rank"),
  ready = ProtoField.uint8("tally.ready", "Ready", base.DEC, RUNNING),
  first_rank = ProtoField.uint16("tally.first_rank", "First global rank"),
  job_workers = ProtoField.uint16("tally.job_workers", "Workers of the job"),
  node_ranks = ProtoField.uint16("tally.node_ranks", "Global ranks of the node"),
  behind_from = ProtoField.uint16("tally.behind_from", "First global rank missing or behind"),
  behind_to = ProtoField.uint16("tally.behind_to", "One past the last"),
  ps_missing = ProtoField.uint8("tally.ps_missing", "A parameter server at or below it is missing", base.DEC, RUNNING),
  slowest_in_tree = ProtoField.uint16("tally.slowest_in_tree", "Global rank of the slowest"),
  part = ProtoField.uint8("tally.part", "Part"),
  parts = ProtoField.uint8("tally.parts", "Parts"),
  tree = ProtoField.uint8("tally.tree", "Tree", base.HEX),
  local_rank = ProtoField.uint8("tally.local_rank", "Local rank"),
  node_hosts = ProtoField.uint8("tally.node_hosts", "Hosts of the node"),
  about_from = ProtoField.uint16("tally.about_from", "About the first global rank"),
  about_to = ProtoField.uint16("tally.about_to", "One past the last"),
  switch_name = ProtoField.string("tally.switch_name", "Switch"),
  leave_role = ProtoField.uint8("tally.leave_role", "Role", base.DEC, LEAVE_ROLE),
  below = ProtoField.uint8("tally.below", "Reason for which the job failed below", base.DEC, REASON),
  state = ProtoField.uint8("tally.state", "State", base.DEC, STATE),
  shards = ProtoField.uint8("tally.shards", "Shards"),
  base_port = ProtoField.uint16("tally.base_port", "Base port"),
  joined = ProtoField.uint64("tally.joined", "Joined", base.HEX),
  left = ProtoField.uint64("tally.left", "Left", base.HEX),
  ps_joined = ProtoField.uint8("tally.ps_joined", "Parameter server has joined"),
  group = ProtoField.ipv4("tally.group", "Group address"),
  least = ProtoField.uint32("tally.least", "First fragment not contributed to by all"),
  behind = ProtoField.uint64("tally.behind", "Behind", base.HEX),
  reason = ProtoField.uint8("tally.reason", "Reason", base.DEC, REASON),
  about = ProtoField.uint8("tally.about", "About rank"),
  found = ProtoField.uint32("tally.found", "Found"),
  allowed = ProtoField.uint32("tally.allowed", "Allowed"),
  code = ProtoField.uint8("tally.code", "Code", base.DEC, LEAVE_CODE),
  failed_fragment = ProtoField.uint32("tally.failed_fragment", "Fragment that failed"),
  salt = ProtoField.uint64("tally.salt", "Salt", base.HEX),
  wrapped = ProtoField.bytes("tally.wrapped", "Secret under the member's mask"),
  has_wrapped = ProtoField.uint8("tally.has_wrapped", "Secret is given", base.DEC, RUNNING),
  switch_mac = ProtoField.ether("tally.switch_mac", "MAC of the switch"),
  mac = ProtoField.bytes("tally.mac", "MAC"),
  malformed = ProtoField.string("tally.malformed", "Malformed"),
}
tally.fields = f

local function malformed(name, text)
  return ProtoExpert.new("tally.malformed." .. name, text, expert.group.MALFORMED, expert.severity.ERROR)
end

local x = {
  short = malformed("short", "Shorter than a header"),
  version = malformed("version", "Version is not 2"),
  type = malformed("type", "Type is not in use"),
  flags = malformed("flags", "Flags that this type does not have"),
  element = malformed("element", "Element type that this frame does not have"),
  reserved = malformed("reserved", "Reserved bits are set"),
  rank = malformed("rank", "Rank that does not send this type"),
  units = malformed("units", "Number of units that this type does not have"),
  length = malformed("length", "Units do not match the length"),
  bitmap = malformed("bitmap", "Bitmap that this frame does not have"),
  control = malformed("control", "Value out of its range"),
  unlisted = ProtoExpert.new("tally.unlisted", "Unlisted bytes are not zero",
    expert.group.PROTOCOL, expert.severity.WARN),
  epoch = ProtoExpert.new("tally.epoch_zero", "Epoch 0 in a frame that needs one",
    expert.group.PROTOCOL, expert.severity.WARN),
  is_overflow = ProtoExpert.new("tally.overflowed", "The sum saturated and is not valid",
    expert.group.RESPONSE_CODE, expert.severity.WARN),
  is_refused = ProtoExpert.new("tally.refused", "Refused", expert.group.RESPONSE_CODE, expert.severity.NOTE),
}
tally.experts = x

local ip_len = Field.new("ip.len")

-- What sections 2 and 4 say of each type ----------------------------------------------------

local FLAG = { { 0x01, "RESEND" }, { 0x02, "OVERFLOW" }, { 0x04, "FROM_PS" }, { 0x08, "FINISHED" },
  { 0x10, "MARKED" }, { 0x20, "COLLISION" } }

local function is_worker(rank) return rank <= 63 end
local function is_member(rank) return rank <= 63 or rank == PS end
local function is_switch(rank) return rank == SWITCH end
local function is_ps(rank) return rank == PS end
local function is_anyone(rank) return rank <= 63 or rank >= SWITCH end

local RULE = {
  [JOIN] = { flags = 0, rank = is_member, bitmap = "none", control = {
    { 0, 8, "instance" }, { 8, 8, "challenge" }, { 16, 1, "role", ROLE }, { 17, 1, "workers" },
    { 18, 1, "job_units" }, { 19, 1, "running", RUNNING }, { 20, 2, "window" }, { 24, 32, "shape" },
    { 56, 4, "sent" }, { 60, 1, "has_sent", RUNNING }, { 61, 1, "ready", RUNNING }, { 62, 2, "awaiting" },
    { 64, 8, "salt" }, { 72, 2, "first_rank" }, { 74, 2, "job_workers" }, { 76, 2, "node_ranks" },
    { 78, 2, "behind_from" }, { 80, 2, "behind_to" }, { 82, 1, "ps_missing", RUNNING },
    { 84, 2, "slowest_in_tree" }, { 86, 1, "part" }, { 87, 1, "parts" } } },
  [ACCEPT] = { flags = 0, rank = is_member, bitmap = "none", control = {
    { 0, 8, "instance" }, { 8, 8, "challenge" }, { 16, 1, "state", STATE }, { 17, 1, "workers" },
    { 18, 1, "job_units" }, { 19, 1, "shards" }, { 20, 2, "base_port" }, { 22, 2, "window" },
    { 24, 8, "joined" }, { 32, 8, "left" }, { 40, 1, "ps_joined" }, { 41, 1, "slowest" }, { 42, 2, "awaiting" },
    { 44, 4, "group" },
    { 48, 4, "least" }, { 52, 2, "slowest_in_tree" }, { 54, 1, "part" }, { 55, 1, "parts" },
    { 56, 8, "behind" }, { 64, 6, "switch_mac" }, { 72, 8, "salt" }, { 80, 16, "wrapped" }, { 96, 1, "has_wrapped", RUNNING }, { 97, 1, "tree" },
    { 98, 1, "local_rank" }, { 99, 1, "node_hosts" }, { 100, 2, "first_rank" }, { 102, 2, "job_workers" },
    { 104, 2, "behind_from" }, { 106, 2, "behind_to" } } },
  [REFUSE] = { flags = 0, rank = is_member, bitmap = "none", control = {
    { 0, 8, "instance" }, { 8, 8, "challenge" }, { 16, 1, "reason", REASON }, { 17, 1, "about" },
    { 18, 1, "tree" }, { 20, 4, "found" }, { 24, 4, "allowed" }, { 28, 2, "behind_from" }, { 30, 2, "behind_to" },
    { 32, 8, "behind" }, { 40, 2, "about_from" }, { 42, 2, "about_to" }, { 48, 64, "switch_name" } } },
  [LEAVE] = { flags = 0, rank = is_member, bitmap = "none", control = {
    { 0, 8, "instance" }, { 8, 8, "challenge" }, { 16, 1, "code", LEAVE_CODE }, { 17, 1, "leave_role" },
    { 18, 1, "tree" }, { 20, 4, "failed_fragment" }, { 24, 8, "behind" }, { 32, 8, "salt" },
    { 40, 2, "behind_from" }, { 42, 2, "behind_to" }, { 44, 2, "first_rank" } },
    -- of a switch below which the job failed: what its members were told
    control_below = { { 0, 8, "instance" }, { 8, 8, "challenge" }, { 16, 1, "code", LEAVE_CODE }, { 17, 1, "leave_role" },
      { 18, 1, "tree" }, { 19, 1, "below", REASON }, { 20, 4, "allowed" }, { 24, 4, "found" },
      { 28, 2, "behind_from" }, { 30, 2, "behind_to" }, { 32, 8, "salt" },
      { 40, 2, "about_from" }, { 42, 2, "about_to" }, { 48, 64, "switch_name" } } },
  [DATA] = { flags = 0x33, rank = is_worker, bitmap = "own", elements = true },
  [RESULT] = { flags = 0x36, rank = is_anyone, bitmap = "tag", elements = true },
  [PARTIAL] = { flags = 0x33, rank = is_switch, bitmap = "some", elements = true },
  [REMIND] = { flags = 0, rank = is_ps, bitmap = "tag" },
  [NOT_HERE] = { flags = 0x08, rank = is_switch, bitmap = "tag" },
  [NACK] = { flags = 0, rank = is_worker, bitmap = "tag" },
  [PROBE] = { flags = 0, rank = is_worker, bitmap = "tag" },
}

-- Bytes behind the payload (F-4).
local function trailer_bytes(kind) return kind == PARTIAL and TAG_BYTES or 0 end

-- Bitmaps. Numbers of 64 bits are awkward in Lua: a set of ranks is a list in ascending order. -

local function ranks_of(range)
  local ranks = {}
  for half = 1, 0, -1 do
    local word = range(half * 4, 4):uint()
    for bit = 0, 31 do
      if math.floor(word / 2 ^ bit) % 2 == 1 then ranks[#ranks + 1] = bit + (1 - half) * 32 end
    end
  end
  return ranks
end

-- 0..k without a gap
local function is_prefix(ranks) return #ranks > 0 and ranks[#ranks] == #ranks - 1 end

local function ranks_text(ranks)
  local text, i = {}, 1
  while i <= #ranks do
    local j = i
    while ranks[j + 1] == ranks[j] + 1 do j = j + 1 end
    text[#text + 1] = i == j and tostring(ranks[i]) or (ranks[i] .. "-" .. ranks[j])
    i = j + 1
  end
  return #text == 0 and "no rank" or (#ranks == 1 and "rank " or "ranks ") .. table.concat(text, ",")
end

local function bitmap_is_right(rule, header)
  local ranks = header.ranks
  if rule.bitmap == "none" then return #ranks == 0 end
  if rule.bitmap == "own" then return #ranks == 1 and ranks[1] == header.rank end
  -- H-3: one contribution by itself, or the fold so far
  if header.element ~= I32 and header.element ~= SCALE then return #ranks == 1 or is_prefix(ranks) end
  return #ranks > 0
end

-- Dissection --------------------------------------------------------------------------------

-- A malformed frame gets an expert info and, so that one filter finds them all, a field.
local function complain(tree, item, which, text)
  item:add_proto_expert_info(which, text)
  tree:add(f.malformed, text):set_generated()
end

local function flag_names(flags)
  local names = {}
  for _, flag in ipairs(FLAG) do
    if math.floor(flags / flag[1]) % 2 == 1 then names[#names + 1] = flag[2] end
  end
  return names
end

-- flags that are not among `allowed`
local function foreign_flags(flags, allowed)
  local foreign = {}
  for _, flag in ipairs(FLAG) do
    if math.floor(flags / flag[1]) % 2 == 1 and math.floor(allowed / flag[1]) % 2 == 0 then
      foreign[#foreign + 1] = flag[2]
    end
  end
  return foreign
end

local function rank_text(rank)
  if rank == SWITCH then return "switch" end
  if rank == PS then return "PS" end
  return "rank " .. rank
end

-- Whether IPv4's length, if there is one, is right for a UDP payload of `bytes`.
local function ip_carries(udp_payload_bytes)
  local ip_lens = { ip_len() } -- the innermost comes last
  local ip = ip_lens[#ip_lens]
  return not ip or ip.value == 20 + 8 + udp_payload_bytes, ip and ip.value
end

local function add_header(tree, tvb, bytes, alone, header, rule)
  local version_type = tvb(0, 1)
  tree:add(f.version, version_type)
  local type_item = tree:add(f.type, version_type)
  if not rule then
    complain(tree, type_item, x.type, string.format("type %d is not in use", header.type))
  end

  local flags_item = tree:add(f.flags, tvb(1, 1))
  flags_item:append_text(" " .. table.concat(flag_names(header.flags), " "))
  for _, name in ipairs({ "resend", "overflow", "from_ps", "finished", "marked", "collision",
    "flags_reserved" }) do
    flags_item:add(f[name], tvb(1, 1))
  end
  if header.flags >= 0x40 then complain(tree, flags_item, x.reserved, "reserved flags are set") end
  local foreign = rule and foreign_flags(header.flags, rule.flags) or {}
  if #foreign > 0 then
    complain(tree, flags_item, x.flags, TYPE[header.type] .. " does not have " .. table.concat(foreign, " "))
  end
  if header.overflow then flags_item:add_proto_expert_info(x.is_overflow) end

  tree:add(f.priority, tvb(2, 1))

  local reserved_item = tree:add(f.element_reserved, tvb(3, 1))
  if header.element_reserved ~= 0 then
    complain(tree, reserved_item, x.reserved, "reserved bits beside the element type are set")
  end
  local element_item = tree:add(f.element, tvb(3, 1))
  if header.element > I8 then
    complain(tree, element_item, x.element, string.format("element type %d is not in use", header.element))
  elseif rule and (header.element ~= 0) ~= (rule.elements == true) then
    complain(tree, element_item, x.element,
      string.format("%s does not have element type %s", TYPE[header.type], ELEMENT[header.element]))
  end

  tree:add(f.job, tvb(4, 2))
  local epoch_item = tree:add(f.epoch, tvb(6, 2))
  if header.epoch == 0 and rule and header.type ~= JOIN and header.type ~= REFUSE then
    epoch_item:add_proto_expert_info(x.epoch)
  end
  tree:add(f.fragment, tvb(8, 4))

  local rank_item = tree:add(f.rank, tvb(12, 1))
  if rule and not rule.rank(header.rank) then
    complain(tree, rank_item, x.rank, string.format("%s does not have rank %d", TYPE[header.type], header.rank))
  end

  local units_item = tree:add(f.units, tvb(13, 1))
  units_item:append_text(string.format(" (%d bytes)", header.units * UNIT_BYTES))
  local low, high = 0, UNITS_MAX
  if rule then
    low = rule.control and CONTROL_UNITS or rule.elements and 1 or 0
    high = rule.control and CONTROL_UNITS or rule.elements and UNITS_MAX or 0
  end
  if header.units < low or header.units > high then
    complain(tree, units_item, x.units,
      string.format("%s does not have %d units", TYPE[header.type] or "a frame", header.units))
  end
  -- F-4: the header, UDP and IPv4 all say the same
  local payload_bytes = bytes - HEADER_BYTES - trailer_bytes(header.type)
  local ip_is_right, ip_bytes = ip_carries(bytes)
  if payload_bytes ~= header.units * UNIT_BYTES then
    complain(tree, units_item, x.length, string.format("%d units are %d bytes, but UDP carries %d after the header",
      header.units, header.units * UNIT_BYTES, payload_bytes))
  elseif alone and not ip_is_right then
    complain(tree, units_item, x.length, string.format("the IPv4 length %d is not 20 + 8 + %d + %d",
      ip_bytes, HEADER_BYTES, bytes - HEADER_BYTES))
  end

  if rule and rule.bitmap == "tag" then
    tree:add(f.tag, tvb(14, 8))
    return
  end
  local bitmap_item = tree:add(f.bitmap, tvb(14, 8))
  bitmap_item:append_text(" (" .. ranks_text(header.ranks) .. ")")
  bitmap_item:add(f.contributions, tvb(14, 8), #header.ranks):set_generated()
  if rule and not bitmap_is_right(rule, header) then
    complain(tree, bitmap_item, x.bitmap, string.format("%s of %s does not have the bitmap of %s",
      TYPE[header.type], rank_text(header.rank), ranks_text(header.ranks)))
  end
end

-- Bytes that the field table leaves out, up to the MAC, that are not zero.
local function unlisted_bytes(range, fields)
  local at, found = 0, {}
  local function look(to)
    while at < to do
      if range(at, 1):uint() ~= 0 then found[#found + 1] = at end
      at = at + 1
    end
  end
  for _, field in ipairs(fields) do
    look(field[1])
    at = field[1] + field[2]
  end
  look(MAC_AT)
  return found
end

-- Bytes that are not printable ASCII as \xNN.
local function switch_name(range)
  local escaped = function(c) return string.format("\\x%02x", c:byte()) end
  return (range:raw():match("^[^%z]*"):gsub("[^ -~]", escaped))
end

local function refusal_text(reason, values, range)
  local text = REASON[reason] or "reason " .. reason
  if values.about and values.about ~= 255 then text = text .. " about rank " .. values.about end
  if values.about_to > values.about_from then
    local last = values.about_to - 1
    text = text .. (last > values.about_from and string.format(" about ranks %d-%d", values.about_from, last)
      or " about rank " .. last)
  end
  local name = switch_name(range(48, 64))
  if name ~= "" then text = text .. " at " .. name end
  if values.found ~= 0 or values.allowed ~= 0 then
    text = text .. string.format(" (found %d, allowed %d)", values.found, values.allowed)
  end
  return text
end

-- Returns a few words for the info column.
local function add_control(tree, range, header, rule)
  local body = tree:add(tally, range, TYPE[header.type] .. " payload")
  local values = {}
  local fields = rule.control_below and range(19, 1):uint() ~= 0 and rule.control_below or rule.control
  for _, field in ipairs(fields) do
    local at, size, name, names = field[1], field[2], field[3], field[4]
    local part = range(at, size)
    local item = name == "switch_name" and body:add(f[name], part, switch_name(part)) or body:add(f[name], part)
    if size <= 4 then values[name] = part:uint() end
    if names and not names[values[name]] then
      complain(tree, item, x.control, string.format("%s %d is not in use", name, values[name]))
    end
    if name == "joined" or name == "left" or name == "behind" then
      item:append_text(" (" .. ranks_text(ranks_of(part)) .. ")")
    end
    if name == "instance" and part:uint64() == UInt64(0) and header.type ~= REFUSE then
      complain(tree, item, x.control, "the instance is 0")
    end
    if name == "reason" then
      item:append_text(", " .. (FINALITY[values.reason] or "unknown"))
      item:add_proto_expert_info(x.is_refused, "Refused: " .. (REASON[values.reason] or "unknown"))
    end
    if name == "about" and values.about == 255 then item:append_text(" (none)") end
  end
  local strays = unlisted_bytes(range, fields)
  if #strays > 0 then
    body:add_proto_expert_info(x.unlisted, "payload bytes that should be 0: " .. table.concat(strays, " "))
  end
  body:add(f.mac, range(MAC_AT, 16))

  if header.type == JOIN then
    if values.role == 1 then
      local part = values.parts > 1 and string.format("part %d of %d", values.part, values.parts)
      return header.rank ~= PS and "as PS" or part or nil
    elseif values.role == 2 then
      return string.format("as switch of ranks %d-%d of %d workers", values.first_rank,
        values.first_rank + values.node_ranks - 1, values.job_workers)
    end
    local global = values.job_workers > 0 and string.format("(global rank %d of %d) ", values.first_rank, values.job_workers) or ""
    return string.format("%sof %d workers, %d units, window %d", global, values.workers, values.job_units, values.window)
  elseif header.type == ACCEPT then
    return string.format("%s epoch %d", STATE[values.state] or "state " .. values.state, header.epoch)
  elseif header.type == REFUSE then
    return refusal_text(values.reason, values, range)
  elseif values.below then
    return "failed below: " .. refusal_text(values.below, values, range)
  end
  local text = LEAVE_CODE[values.code] or "code " .. values.code
  local is_about_one = values.code == 2 or values.code == 4
  return is_about_one and text .. " in fragment " .. values.failed_fragment or text
end

-- A number of 16 bits, the lower ones a fraction.
local function half_value(bits, fraction_bits)
  local places = 2 ^ fraction_bits
  local exponents = 2 ^ (15 - fraction_bits)
  local sign = bits >= 0x8000 and -1 or 1
  local exponent = math.floor(bits % 0x8000 / places)
  local fraction = bits % places / places
  if exponent == exponents - 1 then return fraction == 0 and sign * math.huge or 0 / 0 end
  local bias = exponents / 2 - 1
  if exponent == 0 then return sign * fraction * 2 ^ (1 - bias) end
  return sign * (1 + fraction) * 2 ^ (exponent - bias)
end

local function f16_value(bits) return half_value(bits, 10) end

local function bf16_value(bits) return half_value(bits, 7) end

local function add_elements(tree, range, element)
  local size = ELEMENT_BYTES[element] or 4
  local count = math.floor(range:len() / size)
  local body = tree:add(f.payload, range)
  body:set_text(string.format("Payload: %d x %s", count, ELEMENT[element] or "unknown"))
  if not ELEMENT[element] or element == 0 then return end
  for i = 0, math.min(count, ELEMENTS_SHOWN_MAX) - 1 do
    local part = range(i * size, size)
    local item
    if element == I32 then
      item = body:add(f.i32, part)
    elseif element == F32 then
      item = body:add_le(f.f32, part)
    elseif element == F16 then
      item = body:add(f.f16, part, f16_value(part:le_uint()))
    elseif element == BF16 then
      item = body:add(f.bf16, part, bf16_value(part:le_uint()))
    elseif element == I16 then
      item = body:add(f.i16, part)
    elseif element == I8 then
      item = body:add(f.i8, part)
    else
      item = body:add(f.scale, part)
    end
    item:prepend_text(string.format("[%d] ", i))
  end
  if count > ELEMENTS_SHOWN_MAX then
    body:add(tally, range, string.format("... and %d more", count - ELEMENTS_SHOWN_MAX))
  end
end

-- A datagram, of which `tvb` has what was captured; `alone` if it is all that UDP carries. Returns
-- a line for the info column.
local function dissect(tvb, bytes, alone, root)
  local tree = root:add(tally, tvb(), "Tally")
  if bytes < HEADER_BYTES then
    complain(tree, tree, x.short, string.format("%d bytes are shorter than a header", bytes))
    return "malformed: shorter than a header"
  end
  if tvb:len() < HEADER_BYTES then return "cut off by the capture" end

  local version, kind = math.floor(tvb(0, 1):uint() / 16), tvb(0, 1):uint() % 16
  if version ~= 2 then
    complain(tree, tree:add(f.version, tvb(0, 1)), x.version, string.format("version %d is not 2", version))
    return string.format("malformed: version %d", version)
  end

  local flags = tvb(1, 1):uint()
  local header = {
    type = kind,
    flags = flags,
    overflow = math.floor(flags / 2) % 2 == 1,
    element = tvb(3, 1):uint() % 16,
    element_reserved = math.floor(tvb(3, 1):uint() / 16),
    job = tvb(4, 2):uint(),
    epoch = tvb(6, 2):uint(),
    fragment = tvb(8, 4):uint(),
    rank = tvb(12, 1):uint(),
    units = tvb(13, 1):uint(),
    ranks = ranks_of(tvb(14, 8)),
  }
  local rule = RULE[kind]
  add_header(tree, tvb, bytes, alone, header, rule)

  local info = { TYPE[kind] or "type " .. kind, "job " .. header.job, rank_text(header.rank) }
  local present = tvb:len() - HEADER_BYTES
  if rule and rule.control then
    if present >= CONTROL_UNITS * UNIT_BYTES then
      info[#info + 1] = add_control(tree, tvb(HEADER_BYTES, CONTROL_UNITS * UNIT_BYTES), header, rule)
    end
  else
    info[#info + 1] = "fragment " .. header.fragment
    if header.element ~= 0 then info[#info + 1] = ELEMENT[header.element] or "element " .. header.element end
    if kind == PARTIAL then info[#info + 1] = ranks_text(header.ranks) end
    local elements = math.min(present, header.units * UNIT_BYTES)
    if kind ~= PARTIAL then elements = present end
    if elements > 0 then add_elements(tree, tvb(HEADER_BYTES, elements), header.element) end
    if kind == PARTIAL and present >= header.units * UNIT_BYTES + TAG_BYTES then
      tree:add(f.tag, tvb(HEADER_BYTES + header.units * UNIT_BYTES, TAG_BYTES))
    end
  end
  for _, name in ipairs(flag_names(flags)) do info[#info + 1] = name end
  local text = table.concat(info, " ")
  tree:set_text("Tally " .. text)
  return text
end

-- Bytes of each datagram but the last, which may be shorter, if these are several that a host's
-- kernel carries as one frame: what a capture on a virtual link sees
-- (docs/adr/0012-packet-sockets.md). The kernel looks at lengths only, so they may be of different
-- types. One that really left as this would look the same.
local function datagram_of_superframe(tvb)
  local all, captured = tvb:reported_len(), tvb:len()
  if captured < HEADER_BYTES or not ip_carries(all) then return nil end
  local one = HEADER_BYTES + tvb(13, 1):uint() * UNIT_BYTES + trailer_bytes(tvb(0, 1):uint() % 16)
  if all <= one then return nil end
  for at = 0, all - 1, one do
    local bytes = math.min(one, all - at)
    local rest = (bytes - HEADER_BYTES) % UNIT_BYTES
    if rest ~= 0 and rest ~= TAG_BYTES then return nil end
    if at + HEADER_BYTES <= captured then -- of what is cut off, the lengths must do
      local version_type, units = tvb(at, 1):uint(), tvb(at + 13, 1):uint()
      if math.floor(version_type / 16) ~= 2 or not TYPE[version_type % 16] then return nil end
      local whole = HEADER_BYTES + units * UNIT_BYTES + trailer_bytes(version_type % 16)
      if whole ~= bytes then return nil end
    end
  end
  return one
end

function tally.dissector(tvb, pinfo, root)
  pinfo.cols.protocol = "TALLY"
  local all, captured = tvb:reported_len(), tvb:len()
  local one = datagram_of_superframe(tvb)
  if not one then
    pinfo.cols.info = dissect(tvb, all, true, root)
    return captured
  end
  local first
  for at = 0, captured - 1, one do
    local bytes = math.min(one, all - at)
    local info = dissect(tvb(at, math.min(bytes, captured - at)):tvb(), bytes, false, root)
    first = first or info
  end
  pinfo.cols.info = string.format("%d in one: the first is %s", math.ceil(all / one), first)
  return captured
end

-- Ports -------------------------------------------------------------------------------------

tally.prefs.port = Pref.uint("Base UDP port", PORT_DEFAULT, "UDP port of the switch for control frames and shard 0")
tally.prefs.shards = Pref.uint("Shards", SHARDS_DEFAULT, "Number of UDP ports from the base port on")

local registered
local udp_ports = DissectorTable.get("udp.port")

local function bind_ports()
  if registered then udp_ports:remove(registered, tally) end
  registered = nil
  local first, shards = tally.prefs.port, tally.prefs.shards
  if first >= 1 and first <= 65535 and shards >= 1 then
    registered = string.format("%d-%d", first, math.min(first + shards - 1, 65535))
    udp_ports:add(registered, tally)
  end
end

tally.prefs_changed = bind_ports
bind_ports()
