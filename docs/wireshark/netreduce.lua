-- Wireshark dissector for NetReduce rings of Tally (docs/NETREDUCE.md), behind Wireshark's own for
-- RoCEv2.
--
-- It is installed and tried as tally.lua is (see there):
--
--     tshark -X lua_script:docs/wireshark/netreduce.lua -r ring.pcapng
--
-- Filters to begin with:
--
--     netreduce.malformed                              first packets dropped for their form
--     netreduce.ring == 7 && netreduce.message == 12   all packets of one message
--     netreduce.flags.summed                           first packets released with the sum
--     netreduce.packet && netreduce.copy               packets whose PSN was seen before
--     netreduce.kind == 1 && netreduce.leaf == 0       partial sums of the first leaf of a tree
--
-- Between switches of a tree, partial sums and totals have headers of their own (UDP port 4792).
--
-- Only a message's first packet has the ring's header. Those behind it are known by their PSN, if
-- the capture has the first one. A capture of both ports has a packet twice, with the contribution
-- and with the sum; so does a retransmission. The dissector has no keys: it does not check tags.

local HEADER_BYTES = 32
local MAGIC = 0x544e5231
local PARTIAL_PORT, PARTIAL_MAGIC, PARTIAL_HEADER_BYTES, ICRC_BYTES = 4792, 0x544e5031, 36, 4
local PARTIAL, TOTAL = 1, 2
local KIND = { [PARTIAL] = "PARTIAL", [TOTAL] = "TOTAL" }
local LEAF_MAX = 63
local PSN_MODULUS = 2 ^ 24
local RANK_MAX = 63
local MESSAGE_MAX = 2 ^ 32 - 2
local ELEMENTS_SHOWN_MAX = 16
-- Messages of a connection in which a packet is looked for, the newest first.
local MESSAGES_KEPT = 64

local netreduce = Proto("netreduce", "NetReduce ring")

local I32, F32, F16, BF16 = 0, 1, 2, 3
local ELEMENT = { [I32] = "i32", [F32] = "f32", [F16] = "f16", [BF16] = "bf16" }
-- RC SEND and RDMA WRITE: where in its message a packet is.
local FIRST, MIDDLE, LAST, ONLY = 1, 2, 3, 4
local POSITION = {
  [0x00] = FIRST, [0x01] = MIDDLE, [0x02] = LAST, [0x03] = LAST, [0x04] = ONLY, [0x05] = ONLY,
  [0x06] = FIRST, [0x07] = MIDDLE, [0x08] = LAST, [0x09] = LAST, [0x0a] = ONLY, [0x0b] = ONLY,
}

local f = {
  magic = ProtoField.uint32("netreduce.magic", "Magic", base.HEX),
  element = ProtoField.uint8("netreduce.element", "Element", base.DEC, ELEMENT),
  rank = ProtoField.uint8("netreduce.rank", "Rank"),
  flags = ProtoField.uint8("netreduce.flags", "Flags", base.HEX),
  summed = ProtoField.bool("netreduce.flags.summed", "Summed by the switch", 8, nil, 0x01),
  ring = ProtoField.uint32("netreduce.ring", "Ring"),
  epoch = ProtoField.uint32("netreduce.epoch", "Epoch"),
  message = ProtoField.uint32("netreduce.message", "Message"),
  bytes = ProtoField.uint32("netreduce.bytes", "Bytes of elements"),
  tag = ProtoField.uint64("netreduce.tag", "Tag", base.HEX),
  kind = ProtoField.uint8("netreduce.kind", "Kind", base.DEC, KIND),
  leaf = ProtoField.uint8("netreduce.leaf", "Leaf"),
  mtu = ProtoField.uint16("netreduce.mtu", "Payload bytes of a packet"),
  icrc = ProtoField.uint32("netreduce.icrc", "ICRC", base.HEX),
  packet = ProtoField.uint32("netreduce.packet", "Packet of the message"),
  packets = ProtoField.uint32("netreduce.packets", "Packets of the message"),
  first = ProtoField.framenum("netreduce.first", "First packet of the message in frame"),
  copy = ProtoField.bool("netreduce.copy", "This PSN of the message was seen before"),
  elements = ProtoField.bytes("netreduce.elements", "Elements"),
  i32 = ProtoField.int32("netreduce.i32", "i32"),
  f32 = ProtoField.float("netreduce.f32", "f32"),
  f16 = ProtoField.float("netreduce.f16", "f16"),
  bf16 = ProtoField.float("netreduce.bf16", "bf16"),
  malformed = ProtoField.string("netreduce.malformed", "Malformed"),
}
netreduce.fields = f

local is_malformed = ProtoExpert.new("netreduce.is_malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
netreduce.experts = { is_malformed }

local opcode_field = Field.new("infiniband.bth.opcode")
local psn_field = Field.new("infiniband.bth.psn")
local qp_field = Field.new("infiniband.bth.destqp")

-- The capture so far. Frames are dissected again when they are looked at, so what was found of one
-- stays.
local messages_of = {} -- connection: its messages, in the order in which they began
local found = {}       -- frame number: { message, packet, is_copy }

function netreduce.init()
  messages_of, found = {}, {}
end

local function complain(tree, item, text)
  item:add_proto_expert_info(is_malformed, text)
  tree:add(f.malformed, text):set_generated()
end

-- What is wrong with a header (N-4), or nothing.
local function header_mistakes(header, position, payload_bytes)
  local mistakes = {}
  local function check(is_right, field, text, ...)
    if not is_right then mistakes[#mistakes + 1] = { field, string.format(text, ...) } end
  end
  check(ELEMENT[header.element], "element", "element %d is not in use", header.element)
  check(header.rank <= RANK_MAX, "rank", "rank %d is above %d", header.rank, RANK_MAX)
  check(header.flags <= 1, "flags", "flags 0x%02x are not in use", header.flags)
  check(header.reserved == 0, "flags", "byte 7 is not 0")
  check(header.message <= MESSAGE_MAX, "message", "message numbers do not wrap")
  check(header.bytes > 0 and header.bytes % 4 == 0, "bytes", "%d bytes of elements", header.bytes)
  local whole = HEADER_BYTES + header.bytes
  if position == ONLY then
    check(payload_bytes == whole, "bytes", "%d bytes of header and elements in a packet of %d", whole, payload_bytes)
  else
    check(payload_bytes < whole, "bytes", "%d bytes of header and elements need no packet behind this one", whole)
  end
  return mistakes
end

-- Remembers that a message began. A copy of its first packet begins nothing.
local function begin_message(connection, header, psn, mtu, frame)
  local messages = messages_of[connection] or {}
  messages_of[connection] = messages
  for _, message in ipairs(messages) do
    if message.psn == psn and message.epoch == header.epoch and message.number == header.message then return message end
  end
  local message = {
    ring = header.ring, epoch = header.epoch, number = header.message, rank = header.rank, element = header.element,
    psn = psn, frame = frame, seen = {},
    packets = math.max(1, math.ceil((HEADER_BYTES + header.bytes) / mtu)),
  }
  messages[#messages + 1] = message
  if #messages > MESSAGES_KEPT then table.remove(messages, 1) end
  return message
end

-- The newest message that has a packet of this PSN, and the packet's number.
local function message_of(connection, psn)
  local messages = messages_of[connection] or {}
  for i = #messages, 1, -1 do
    local packet = (psn - messages[i].psn) % PSN_MODULUS
    if packet < messages[i].packets then return messages[i], packet end
  end
end

-- A number of 16 bits, the lower ones a fraction. As in tally.lua: each file is installed alone.
local function half_value(bits, fraction_bits)
  local places, exponents = 2 ^ fraction_bits, 2 ^ (15 - fraction_bits)
  local sign = bits >= 0x8000 and -1 or 1
  local exponent, fraction = math.floor(bits % 0x8000 / places), bits % places / places
  if exponent == exponents - 1 then return fraction == 0 and sign * math.huge or 0 / 0 end
  local bias = exponents / 2 - 1
  if exponent == 0 then return sign * fraction * 2 ^ (1 - bias) end
  return sign * (1 + fraction) * 2 ^ (exponent - bias)
end

local function add_elements(tree, range, element)
  local size = (element == F16 or element == BF16) and 2 or 4
  local count = math.floor(range:len() / size)
  local body = tree:add(f.elements, range)
  body:set_text(string.format("Elements: %d x %s", count, ELEMENT[element] or "unknown"))
  if not ELEMENT[element] then return end
  for i = 0, math.min(count, ELEMENTS_SHOWN_MAX) - 1 do
    local part = range(i * size, size)
    local item
    if element == I32 then
      item = body:add_le(f.i32, part)
    elseif element == F32 then
      item = body:add_le(f.f32, part)
    elseif element == F16 then
      item = body:add(f.f16, part, half_value(part:le_uint(), 10))
    else
      item = body:add(f.bf16, part, half_value(part:le_uint(), 7))
    end
    item:prepend_text(string.format("[%d] ", i))
  end
  if count > ELEMENTS_SHOWN_MAX then
    body:add(netreduce, range, string.format("... and %d more", count - ELEMENTS_SHOWN_MAX))
  end
end

local function header_of(tvb)
  return {
    element = tvb(4, 1):uint(), rank = tvb(5, 1):uint(), flags = tvb(6, 1):uint(), reserved = tvb(7, 1):uint(),
    ring = tvb(8, 4):uint(), epoch = tvb(12, 4):uint(), message = tvb(16, 4):uint(), bytes = tvb(20, 4):uint(),
  }
end

local function add_header(tree, tvb, header, position)
  tree:add(f.magic, tvb(0, 4))
  local items = { element = tree:add(f.element, tvb(4, 1)), rank = tree:add(f.rank, tvb(5, 1)) }
  items.flags = tree:add(f.flags, tvb(6, 1))
  items.flags:add(f.summed, tvb(6, 1))
  tree:add(f.ring, tvb(8, 4))
  tree:add(f.epoch, tvb(12, 4))
  items.message = tree:add(f.message, tvb(16, 4))
  items.bytes = tree:add(f.bytes, tvb(20, 4))
  tree:add(f.tag, tvb(24, 8))
  for _, mistake in ipairs(header_mistakes(header, position, tvb:reported_len())) do
    complain(tree, items[mistake[1]], mistake[2])
  end
end

-- Whether this payload is of a ring.
local function dissect(tvb, pinfo, root)
  local opcode, psn, qp = opcode_field(), psn_field(), qp_field()
  local position = opcode and POSITION[opcode.value]
  if not position then return false end
  local begins = position == FIRST or position == ONLY
  local connection = string.format("%s %s %d", tostring(pinfo.src), tostring(pinfo.dst), qp.value)
  local header
  if begins then
    if tvb:len() < HEADER_BYTES or tvb(0, 4):uint() ~= MAGIC then return false end
    header = header_of(tvb)
  end
  if not found[pinfo.number] then
    local message, packet
    if begins then
      message, packet = begin_message(connection, header, psn.value, tvb:reported_len(), pinfo.number), 0
    else
      message, packet = message_of(connection, psn.value)
    end
    if not message then return false end
    found[pinfo.number] = { message = message, packet = packet, is_copy = message.seen[packet] == true }
    message.seen[packet] = true
  end
  local this = found[pinfo.number]
  local message = this.message

  pinfo.cols.protocol = "NetReduce"
  local tree = root:add(netreduce, tvb(), "NetReduce ring")
  if header then
    add_header(tree, tvb, header, position)
  else
    tree:add(f.ring, message.ring):set_generated()
    tree:add(f.epoch, message.epoch):set_generated()
    tree:add(f.message, message.number):set_generated()
    tree:add(f.rank, message.rank):set_generated()
    tree:add(f.element, message.element):set_generated()
    tree:add(f.first, message.frame):set_generated()
  end
  tree:add(f.packet, this.packet):set_generated()
  tree:add(f.packets, message.packets):set_generated()
  if this.is_copy then tree:add(f.copy, true):set_generated() end
  local from = header and HEADER_BYTES or 0
  if tvb:len() > from then add_elements(tree, tvb(from), message.element) end

  local info = string.format("ring %d epoch %d message %d rank %d packet %d of %d %s", message.ring, message.epoch,
    message.number, message.rank, this.packet + 1, message.packets, ELEMENT[message.element] or "unknown")
  if header and header.flags % 2 == 1 then info = info .. " SUMMED" end
  if this.is_copy then info = info .. " copy" end
  pinfo.cols.info = string.format("%s QP=0x%06x PSN=%d", info, qp.value, psn.value)
  return true
end

-- What is wrong with a header of a partial sum (N-17), or nothing.
local function partial_mistakes(header, element_bytes)
  local mistakes = {}
  local function check(is_right, field, text, ...)
    if not is_right then mistakes[#mistakes + 1] = { field, string.format(text, ...) } end
  end
  check(header.reserved == 0, "kind", "byte 4 is not 0")
  check(KIND[header.kind], "kind", "kind %d is not in use", header.kind)
  check(header.leaf <= LEAF_MAX, "leaf", "leaf %d is above %d", header.leaf, LEAF_MAX)
  check(ELEMENT[header.element], "element", "element %d is not in use", header.element)
  check(header.message <= MESSAGE_MAX, "message", "message numbers do not wrap")
  check(header.bytes > 0 and header.bytes % 4 == 0, "bytes", "%d bytes of elements", header.bytes)
  local whole = HEADER_BYTES + header.bytes
  local is_packet = header.mtu > 0 and header.packet * header.mtu < whole
  check(is_packet, "packet", "packet %d of a message of %d bytes", header.packet, whole)
  if is_packet then
    local payload = math.min(whole - header.packet * header.mtu, header.mtu)
    local expected = payload - (header.packet == 0 and HEADER_BYTES or 0)
    check(element_bytes == expected, "bytes", "%d bytes of elements, not %d", element_bytes, expected)
  end
  return mistakes
end

local partial = Proto("netreduce_partial", "NetReduce partial sum")

function partial.dissector(tvb, pinfo, root)
  if tvb:len() < PARTIAL_HEADER_BYTES or tvb(0, 4):uint() ~= PARTIAL_MAGIC then return 0 end
  local header = {
    reserved = tvb(4, 1):uint(), kind = tvb(5, 1):uint(), leaf = tvb(6, 1):uint(), element = tvb(7, 1):uint(),
    message = tvb(16, 4):uint(), bytes = tvb(20, 4):uint(), mtu = tvb(24, 2):uint(), packet = tvb(26, 2):uint(),
  }
  pinfo.cols.protocol = "NetReduce"
  local tree = root:add(netreduce, tvb(), "NetReduce partial sum")
  tree:add(f.magic, tvb(0, 4))
  local items = { kind = tree:add(f.kind, tvb(5, 1)), leaf = tree:add(f.leaf, tvb(6, 1)), element = tree:add(f.element, tvb(7, 1)) }
  tree:add(f.ring, tvb(8, 4))
  tree:add(f.epoch, tvb(12, 4))
  items.message = tree:add(f.message, tvb(16, 4))
  items.bytes = tree:add(f.bytes, tvb(20, 4))
  tree:add(f.mtu, tvb(24, 2))
  items.packet = tree:add(f.packet, tvb(26, 2))
  tree:add(f.tag, tvb(28, 8))
  local behind = tvb:reported_len() - PARTIAL_HEADER_BYTES
  for _, mistake in ipairs(partial_mistakes(header, math.max(0, behind - ICRC_BYTES))) do
    complain(tree, items[mistake[1]], mistake[2])
  end
  local elements = math.min(tvb:len() - PARTIAL_HEADER_BYTES, behind - ICRC_BYTES)
  if elements > 0 then add_elements(tree, tvb(PARTIAL_HEADER_BYTES, elements), header.element) end
  if behind >= ICRC_BYTES and tvb:len() == tvb:reported_len() then
    tree:add_le(f.icrc, tvb(tvb:len() - ICRC_BYTES, ICRC_BYTES))
  end
  pinfo.cols.info = string.format("%s ring %d epoch %d message %d leaf %d packet %d %s", KIND[header.kind] or "unknown",
    tvb(8, 4):uint(), tvb(12, 4):uint(), header.message, header.leaf, header.packet + 1, ELEMENT[header.element] or "unknown")
  return tvb:len()
end

netreduce:register_heuristic("infiniband.payload", dissect)
DissectorTable.get("udp.port"):add(PARTIAL_PORT, partial)
