import subprocess,time,re,json
T='/work/main/target/release/taut'
def kern():
    t=subprocess.run(['ip','netns','exec','tr','cat','/proc/net/fib_triestat'],capture_output=True,text=True).stdout
    return max([int(x) for x in re.findall(r'Prefixes:\s+(\d+)',t)] or [0])
def taut():
    t=subprocess.run([T,'route','--control','/tmp/bird/control.sock','status','--json'],capture_output=True,text=True).stdout
    try: s=json.loads(t)['status']; return s['routes_v4'], s['kernel']
    except Exception: return 0,{}
b=time.time(); kt=None; tt=None; first=None
while time.time()-b<150:
    k=kern(); t,st=taut(); now=time.time()
    if first is None and k>1000: first=now
    if kt is None and k>=1000000: kt=now
    if t>=1000000: tt=now; break
    time.sleep(0.03)
print('first',first and first-b,'kernel has all',kt and kt-b,'taut has all',tt and tt-b,'lag',(tt-kt) if tt and kt else None, st)
