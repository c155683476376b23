package batontest
import ("testing";"testing/synctest";"time";"context";"net";"bufio";"fmt";"io";"sync/atomic";"sync")
func TestSmoke(t *testing.T){
 synctest.Test(t, func(t *testing.T){
  a:=NewServer(InMemory()); b:=a.Sibling()
  c,err:=a.Dial(context.Background(),"tcp",b.Addr()); if err!=nil{t.Fatal(err)}
  c.Write([]byte("HELLO 3\r\nCLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip\r\nSET a b\r\nGET a\r\nINCR n\r\nBLPOP l 1\r\nPING\r\n"))
  go func(){ buf:=make([]byte,4096); for { n,err:=c.Read(buf); fmt.Printf("%v %q %v\n",time.Now(),buf[:n],err); if err!=nil{return} } }()
  synctest.Wait()
  b.Move(a.Addr(),2500*time.Millisecond)
  time.Sleep(5*time.Second)
  fmt.Println(b.Conns(),b.Executed("get"))
  a.Close(); b.Close()
 })
}
func BenchmarkTCP(b *testing.B){ for _,tr:=range []string{"tcp","mem"} { b.Run(tr,func(b *testing.B){
  s:=NewServer(); defer s.Close()
  var c net.Conn
  if tr=="tcp" { c,_=net.Dial("tcp",s.Addr()) } else { c,_=s.Dial(context.Background(),"tcp",s.Addr()) }
  pipelined(b,c)
})}}
func pipelined(b *testing.B, c net.Conn) {
  val:=make([]byte,64); for i:=range val {val[i]='x'}
  fmt.Fprintf(c,"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$64\r\n%s\r\n",val)
  r:=bufio.NewReaderSize(c,65536); r.ReadString('\n')
  cmd:="*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"; batch:=""; for range 64 {batch+=cmd}
  rep:=make([]byte,64*(64+7))
  b.ResetTimer()
  for i:=0;i<b.N;i+=64 { io.WriteString(c,batch); if _,err:=io.ReadFull(r,rep);err!=nil{b.Fatal(err)} }
  b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(),"cmd/s")
  c.Close()
}
func BenchmarkConns(b *testing.B){ 
  s:=NewServer(); defer s.Close()
  var n atomic.Int64; var wg sync.WaitGroup
  for range 64 { wg.Go(func(){ c,_:=net.Dial("tcp",s.Addr()); defer c.Close(); buf:=make([]byte,512)
   for n.Add(1)<=int64(b.N) { io.WriteString(c,"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"); c.Read(buf) } }) }
  wg.Wait()
  b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(),"cmd/s")
}
