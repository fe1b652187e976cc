-- Records of the feed. ARGV 1 identity or '' 2 cursor or '' 3 the most stream entries
-- answer: {0, meta, cursor behind the last, 1 if that is all, entries} | {3, meta} | {4}
-- entry: {position, at, record, {mark, key, value or '' ...}}; several in a row may have one position
local call, sub, byte, pack, from, A, D = redis.call, string.sub, string.byte, struct.pack, struct.unpack, ARGV, KEYS[1]
--@ past.lua
local r = call('HMGET', D, 's', 'm')
local meta = r[2]
if not meta or (A[1] ~= '' and sub(meta, 1, 16) ~= A[1]) then return {3, meta or ''} end
local position, horizon = from('>I8', r[1]), from('>I8', meta, 17)
local since, most = tonumber(A[2]) or horizon, tonumber(A[3])
if since > position then return {3, meta} end
if since < horizon then return {4} end
local found = call('XRANGE', KEYS[4], string.format('%.0f', since + 1), '+', 'COUNT', most)
local whole_ = #found < most
if not whole_ then -- the last position may have more parts
  local id = found[#found][1]
  local rest = call('XRANGE', KEYS[4], '(' .. id, string.match(id, '^%d+'))
  for j = 1, #rest do found[#found + 1] = rest[j] end
end
local out, bytes, last = {}, 0
local function value_of(k, e, own, place)
  if not e or sub(e, 1, 8) ~= own then
    local p = pack('>I4', #k) .. k
    local kept = call('ZRANGEBYLEX', KEYS[3], '[' .. p .. own, '(' .. p .. pack('>I8', place + 1), 'LIMIT', 0, 1)[1]
    e = kept and sub(kept, #p + 1)
  end
  if not e then return '' end
  e = whole(k, e)
  return sub(e, byte(e, 17) % 8 >= 4 and 26 or 18)
end
for j = 1, #found do
  local place, f = tonumber(string.match(found[j][1], '^%d+')), found[j][2]
  if bytes > 1048576 and place ~= last then return {0, meta, last, 0, out} end
  last = place
  local own, marks, names, where = pack('>I8', place), {}, {}, {}
  for m = 5, #f, 2 do
    marks[#marks + 1] = f[m]
    marks[#marks + 1] = f[m + 1]
    marks[#marks + 1] = ''
    if f[m] == 'p' or f[m] == 'o' then
      names[#names + 1] = f[m + 1]
      where[#names] = #marks
    end
    bytes = bytes + 250 -- what a key costs to look up, in the time that so many bytes would take
  end
  for a = 1, #names, 1000 do
    local newest = call('HMGET', D, unpack(names, a, math.min(a + 999, #names)))
    for m = 1, #newest do
      local value = value_of(names[a + m - 1], newest[m], own, place)
      marks[where[a + m - 1]] = value
      bytes = bytes + #value
    end
  end
  out[j] = {place, f[2], f[4], marks}
end
return {0, meta, whole_ and position or last, whole_ and 1 or 0, out}
